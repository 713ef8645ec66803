-- lib/letters: needs base. Distinguishes the task that repeats a dead letter from another task with its id.

-- The state of the task with an id, and the mark of the letter that it repeats or ''; nil for an unknown id.
local function known_as(id)
  local record = read_record(id)
  if record.state then
    return record.state, record.letter or ''
  end
  local ended = redis.call('GETRANGE', P .. 'r:' .. id, 0, 127)
  if ended ~= '' then
    local state, mark = string.match(ended, '^(%l+)|%d* ?(%x*)|')
    return state, mark
  end
end
