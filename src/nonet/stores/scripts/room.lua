#!lua flags=allow-oom
-- room: whether tasks could be submitted now, as the script submit says it; nothing is changed.
-- KEYS  prefix
-- ARGV  n × (what submit takes of a task)
-- returns 1, or what submit says if it is FULL
-- @include base wake record submitting
local function replace() end
-- @defer unique ceilings find_excess
return is_capped and find_excess(ARGV, 1) or 1
