#!lua flags=allow-oom
-- recognise: what is known under an id, live or ended. Only the task that repeats a letter has its mark:
-- whatever else has the id is another task.
-- KEYS  prefix
-- ARGV  id
-- returns {state, mark or ''} | nothing if the id is unknown
-- @include base letters
local state, mark = known_as(ARGV[1])
return state and {state, mark}
