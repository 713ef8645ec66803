#!lua flags=allow-oom
-- writable: answer, unless Redis refuses scripts that may write. It writes nothing, so a user who may only read can call it.
-- KEYS  prefix
-- ARGV  none
-- returns OK
return 'OK'
