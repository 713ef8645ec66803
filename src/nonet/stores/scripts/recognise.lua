#!lua flags=no-writes
-- recognise: read the state of the task with an id, live or ended. The task that repeats a dead letter has the mark
-- of that letter; a task without the mark is a different task with the same id.
-- KEYS  prefix
-- ARGV  id
-- returns {state, mark or ''} | nothing if the id is unknown
-- @include base letters
local state, mark = known_as(ARGV[1])
return state and {state, mark}
