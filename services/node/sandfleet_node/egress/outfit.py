"""What a build sandbox is given to use the proxy as the host's own package managers would."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict

from .orders import PORT, Forward, RuleGiven

FOLDER = "/run/sandfleet"
"""In the sandbox; what is below /run is in no snapshot and no layer."""
CA_FILE = f"{FOLDER}/ca.pem"
APT_FILE = f"{FOLDER}/apt.conf"
PROXY = f"http://127.0.0.1:{PORT}"
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----")
_CA_VARIABLES = (
    "SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
)  # fmt: skip
_APT = f"""\
Acquire::http::Proxy "{PROXY}";
Acquire::https::Proxy "{PROXY}";
Acquire::Retries "3";
// What is built is packed or thrown away, and never read after a loss of power.
DPkg::Options {{ "--force-unsafe-io"; }};
"""


class Found(BaseModel):
    """How this machine's package managers are set up."""

    model_config = ConfigDict(frozen=True)

    rules: tuple[RuleGiven, ...] = ()
    """Where they get packages."""
    forward: Forward = Forward()
    pip_index: str = ""
    """Empty: pip's own default."""
    pip_extra_indexes: tuple[str, ...] = ()
    npm_registry: str = ""
    """Empty: npm is not installed."""
    certificates: bytes = b""
    """PEM of the authorities they trust."""
    problems: tuple[str, ...] = ()
    """What could not be found out, a sentence each."""


def certificates_of(texts: Iterable[bytes]) -> bytes:
    """Return the certificates in PEM texts, each once, and nothing else that is in there."""
    found = (match for text in texts for match in _CERTIFICATE.findall(text))
    return b"".join(pem + b"\n" for pem in dict.fromkeys(found))


def bare(url: str) -> str:
    """Return a URL without the credentials in it: they would be the sandbox's to read."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def variables(found: Found) -> dict[str, str]:
    """Return the environment variables of every command of a build sandbox."""
    direct = "localhost,127.0.0.1,::1"
    given = {
        "http_proxy": PROXY, "https_proxy": PROXY, "HTTP_PROXY": PROXY, "HTTPS_PROXY": PROXY,
        "no_proxy": direct, "NO_PROXY": direct, "APT_CONFIG": APT_FILE,
    }  # fmt: skip
    if found.pip_index:
        given["PIP_INDEX_URL"] = bare(found.pip_index)
    if found.pip_extra_indexes:
        given["PIP_EXTRA_INDEX_URL"] = " ".join(map(bare, found.pip_extra_indexes))
    if found.npm_registry:
        given["NPM_CONFIG_REGISTRY"] = bare(found.npm_registry)
    if found.certificates:
        given |= dict.fromkeys(_CA_VARIABLES, CA_FILE)
    return given


def files(found: Found) -> dict[str, bytes]:
    """Return the files that those variables speak of."""
    if not found.certificates:
        return {APT_FILE: _APT.encode()}
    return {
        APT_FILE: (_APT + f'Acquire::https::CaInfo "{CA_FILE}";\n').encode(),
        CA_FILE: found.certificates,
    }
