"""The central configuration: the models of the YAML file, and the messages for its mistakes.

Administrators of an installation edit this file, which has the form of the decision record. A file
with a problem is rejected as a whole. Process settings (URLs, durations) are in
`nonet.config.settings`.
"""
