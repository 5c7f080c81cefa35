"""Certificates of a minute's making, by the openssl command."""

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Certificate:
    """Two PEM files; self-signed, so whoever trusts the first trusts exactly this one."""

    certificate: Path
    key: Path

    @property
    def pem(self) -> str:
        return self.certificate.read_text()

    def copy_to(self, other: "Certificate") -> None:
        """Renew: what stood there is replaced."""
        other.certificate.write_text(self.pem)
        other.key.write_text(self.key.read_text())


def make_certificate(directory: Path, name: str) -> Certificate:
    """For 127.0.0.1, valid for two days."""
    made = Certificate(directory / f"{name}.pem", directory / f"{name}-key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", made.key, "-out", made.certificate], check=True, capture_output=True)
    return made
