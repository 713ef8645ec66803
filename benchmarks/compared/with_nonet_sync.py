"""Nonet without an event loop: only submits, see compare_sync.py."""

import common
import with_nonet

import nonet

if __name__ == "__main__":
    with nonet.SyncNonet.from_settings(tasks=("with_nonet",)) as app:
        common.submit_sync(lambda _, number: app.submit(with_nonet.Nothing(number=number)))
