"""``task-run dev``: one system for a developer, which starts anew when the code changes.

code            the modules that a developer names, and where Python finds them
trial_load      a process that loads them: what is wrong with them, and which files they consist of
changed_files   which of these files have changed
plan            what the system consists of
log             the one log of all of them
reloading       all of it together
"""
