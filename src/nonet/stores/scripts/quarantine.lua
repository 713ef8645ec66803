#!lua flags=allow-oom
-- quarantine: keep the envelope of a message that is no valid task, with the reason, once. The record stays until
-- its delivery is settled.
-- KEYS  prefix
-- ARGV  id, reason, stream key and entry of the pointer to it
-- returns nothing
-- @include base wake record rescue
quarantine_envelope(ARGV[1], ARGV[2], P .. ARGV[3], ARGV[4])
