"""The central configuration: what the YAML file may say, and how its mistakes are reported.

Process settings (URLs, durations) are in `nonet.config.settings`; this is what administrators of an
installation edit, in the form of the decision record. It is read as a whole or not at all.
"""
