"""The job that the API's documentation shows: prove the fix of CVE-2022-0995."""

import json
from pathlib import Path

JOB = json.loads(Path(__file__).with_suffix(".json").read_text())
