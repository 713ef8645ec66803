-- lib/letters: needs base. Tells the task that repeats a letter from others under its id.

-- What is known under an id: the state of the task and the mark of the letter that it repeats, or ''; nil
-- if nothing is known.
local function known_as(id)
  local fine, record = pcall(read_fields, P .. 't:' .. id, {'state', 'letter'})
  record = fine and record or {}  -- of another type
  if record.state or redis.call('EXISTS', P .. 't:' .. id) == 1 then
    return record.state or 'damaged', record.letter or ''
  end
  local ended = redis.call('GETRANGE', P .. 'r:' .. id, 0, 127)
  if ended ~= '' then
    local state, mark = string.match(ended, '^(%l+)|%d* ?(%x*)|')
    return state or 'damaged', mark or ''
  end
end
