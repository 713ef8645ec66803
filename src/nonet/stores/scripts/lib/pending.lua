-- lib/pending: needs base, wake, rescue. Removes an entry that a worker has from its stream.

-- Call move(id, gen) for the task of a pending entry, then remove the entry, whatever becomes of the task.
-- Returns the answer of move; false if there is no such task.
local function see_to(key, entry, move)
  local found, fine, answer = redis.call('XRANGE', key, entry, entry)[1], true, false
  local id = found and found[2][1] == 'id' and found[2][3] == 'gen' and found[2][2]
  if id then
    fine, answer = pcall(move, id, found[2][4])
  end
  if fine then
    if id and not answer then
      note_unknown(id)
    end
    drop(key, entry)
  else
    rescue(key, entry, found[2], answer)
  end
  return fine and answer
end
