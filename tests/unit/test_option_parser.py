"""Wrong words after `--`: a line that names what there is, and no page of usage."""

import pytest

from engine_bridge.engines import sim_options


def test_a_wrong_flag_of_an_engine_is_told_in_a_line_with_the_right_ones(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        sim_options.parse_options(["--step-mss", "5"])
    assert end.value.code == 2
    [record] = caplog.records
    assert record.getMessage().startswith(
        "--engine sim --: unrecognized arguments: --step-mss 5; there are --help, --task"
    )
    assert capsys.readouterr() == ("", "")
