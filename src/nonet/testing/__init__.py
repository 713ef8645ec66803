"""Test helpers for authors of tasks; see docs/how-to/test-your-tasks.md.

run = await run_inline(SendInvoice(7), overrides={open_db: FakeDB})

async with System(tasks=[SendInvoice]) as system:
    await SendInvoice(7).schedule()
    await system.run_until_idle()
    system.assert_submitted(SendInvoice, number=7)
"""

from nonet.testing.idle import NotIdleError
from nonet.testing.inline import InlineGroup, InlineRun, run_inline
from nonet.testing.submitted import Submitted
from nonet.testing.system import System

__all__ = ["InlineGroup", "InlineRun", "NotIdleError", "Submitted", "System", "run_inline"]
