#!lua flags=no-writes
-- room: check whether tasks could be submitted now; it answers like submit, and changes nothing.
-- KEYS  prefix
-- ARGV  n × (arguments of submit_one)
-- returns 1, or {'FULL', …} as submit does
-- @include base wake record counting submitting
local function replace() end
-- @defer unique submits hashes ceilings find_excess
return is_capped and find_excess(ARGV, 1) or 1
