#!lua flags=allow-oom
-- writable: fail if Redis refuses scripts that may write. It writes nothing, so that a read-only user can call it.
-- KEYS  prefix
-- ARGV  none
-- returns OK
return 'OK'
