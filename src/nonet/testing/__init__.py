"""Help for the tests of those who write tasks; see docs/how-to/test-your-tasks.md.

run = await run_inline(RemoveFile("CERN-DST", "/lhcb/a"), overrides={open_db: FakeDB})

async with System(tasks=[RemoveFile]) as system:
    await RemoveFile("CERN-DST", "/lhcb/a").schedule()
    await system.run_until_idle()
    system.assert_submitted(RemoveFile, storage_element="CERN-DST")
"""

from nonet.testing.inline import InlineGroup, InlineRun, run_inline
from nonet.testing.submissions import Submitted
from nonet.testing.system import NotIdleError, System

__all__ = ["InlineGroup", "InlineRun", "NotIdleError", "Submitted", "System", "run_inline"]
