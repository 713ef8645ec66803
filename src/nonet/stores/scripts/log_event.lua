#!lua flags=allow-oom
-- log_event: append an event that happened elsewhere, for example in SQL.
-- KEYS  prefix
-- ARGV  kind, who, text
-- returns nothing
-- @include base events
log_event(ARGV[1], ARGV[2], ARGV[3])
