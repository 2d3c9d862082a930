"""Service accounts of a cloud: their keys, the tokens that they get, the URLs that they sign."""

import hashlib
import json
import secrets
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from google.auth import jwt

from tests.google.cloud_storage.buckets import Refusal

TOKEN_SECONDS = 3600
# What Google's library names, whatever the key file says.
_AUDIENCE = "https://oauth2.googleapis.com/token"
_ALGORITHM = "GOOG4-RSA-SHA256"
_LONGEST = 7 * 24 * 3600
# Seconds that the signer's clock may be ahead.
_SKEW = 15 * 60


class Accounts:
    """Who may call. While there are none, everybody may."""

    def __init__(self) -> None:
        # Seconds that the server's clock is ahead of this machine's.
        self.ahead = 0.0
        self._keys: dict[str, rsa.RSAPublicKey] = {}
        self._tokens: dict[str, float] = {}
        self._lock = threading.Lock()

    @property
    def now(self) -> float:
        """Seconds since the epoch, by the server's clock."""
        return time.time() + self.ahead

    def create(self, name: str, token_uri: str, path: Path) -> str:
        """Make an account; write its key file, as the service gives it out. Return its address."""
        email = f"{name}@kgym-test.iam.gserviceaccount.com"
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        text = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        kept = {
            "type": "service_account",
            "project_id": "kgym-test",
            "private_key": text.decode(),
            "client_email": email,
            "token_uri": token_uri,
        }
        path.write_text(json.dumps(kept))
        self._keys[email] = key.public_key()
        return email

    def token(self, assertion: str) -> dict[str, object]:
        """Give a token for a signed assertion; raise Refusal 400 if it is not right."""
        try:
            claims = jwt.decode(assertion, verify=False)
            key = self._keys[str(claims["iss"])]
            text = key.public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
            jwt.decode(assertion, text, audience=_AUDIENCE)
        except (KeyError, ValueError) as error:
            raise Refusal(400, "invalid_grant", f"Invalid JWT: {error}") from error
        made = secrets.token_urlsafe(24)
        with self._lock:
            self._tokens[made] = self.now + TOKEN_SECONDS
        return {"access_token": made, "expires_in": TOKEN_SECONDS, "token_type": "Bearer"}

    def forget_tokens(self) -> None:
        """Let all tokens be expired."""
        with self._lock:
            self._tokens.clear()

    def check(self, authorization: str | None) -> None:
        """Raise Refusal 401 unless the header has a token that is valid."""
        if not self._keys:
            return
        token = (authorization or "").removeprefix("Bearer ")
        with self._lock:
            good = self._tokens.get(token, 0.0) > self.now
        if not good:
            raise Refusal(401, "authError", "Invalid Credentials")

    def check_signature(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str]
    ) -> None:
        """Check a URL that was signed by version 4; raise Refusal if it is not right, or not now.

        https://cloud.google.com/storage/docs/authentication/canonical-requests
        """
        lowered = {key.lower(): value for key, value in query.items()}
        try:
            email, scope = lowered["x-goog-credential"].split("/", 1)
            at = datetime.strptime(lowered["x-goog-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
            seconds = int(lowered["x-goog-expires"])
            names = lowered["x-goog-signedheaders"].split(";")
            signature = bytes.fromhex(lowered["x-goog-signature"])
            key = self._keys[email]
        except (KeyError, ValueError) as error:
            raise Refusal(403, "AccessDenied", f"Access denied: {error}") from error
        if lowered.get("x-goog-algorithm") != _ALGORITHM or not 0 < seconds <= _LONGEST:
            raise Refusal(400, "InvalidArgument", "The signature is of another kind.")
        shown = sorted((k, v) for k, v in query.items() if k.lower() != "x-goog-signature")
        canonical = "\n".join(
            [
                method,
                path,
                "&".join(f"{quote(k, safe='~')}={quote(v, safe='~')}" for k, v in shown),
                *(f"{name}:{headers.get(name, '').strip()}" for name in names),
                "",
                ";".join(names),
                "UNSIGNED-PAYLOAD",
            ]
        )
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        signed = "\n".join([_ALGORITHM, lowered["x-goog-date"], scope, digest])
        try:
            key.verify(signature, signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        except InvalidSignature as error:
            raise Refusal(
                403, "SignatureDoesNotMatch", "The request signature does not match."
            ) from error
        if self.now < at.timestamp() - _SKEW:
            raise Refusal(403, "RequestTimeTooSkewed", "The request was signed in the future.")
        if self.now >= at.timestamp() + seconds:
            raise Refusal(400, "ExpiredToken", "The provided token has expired.")
