"""Settings of a small project."""

import os
from pathlib import Path

BASE = Path(__file__).parent.parent
SECRET_KEY = "x"
ALLOWED_HOSTS = ["testserver"]
INSTALLED_APPS = ["django.contrib.contenttypes", "nonet.contrib.django", "invoices", "plain"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": BASE / "db.sqlite3"}}
ROOT_URLCONF = "invoices.urls"
USE_TZ = True
NONET = {
    "REDIS_URL": os.environ["PROBE_REDIS"],
    "NAMESPACE": "shop",
    "STATE_DIR": BASE / "state",
    "ACCEPT_UNSIGNED": False,
    "SLOTS": {"small": 4},
    "RESULT_TTL": 60,
}
