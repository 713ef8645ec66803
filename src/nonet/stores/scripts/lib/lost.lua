-- lib/lost: needs base, wake, record. A delivery that nobody has any more goes back into its queue.

-- Queue again what is in nobody's hands. limit: of worker deaths, beyond which the task is not executed
-- again. Returns whether it was; gen is that of the pointer to it.
local function take_back(id, gen, limit)
  local key = P .. 't:' .. id
  local record = read_fields(key, {'gen', 'state', 'stream', 'deaths'})
  local state = record.state
  if record.gen ~= gen or state ~= 'queued' and state ~= 'running' and state ~= 'dying' then
    return false
  end
  -- queued: a fetch was cut short after it had read the entry, and nobody has executed it.
  if state == 'running' then
    local deaths = tonumber(record.deaths or '0') + 1
    redis.call('HSET', key, 'deaths', deaths)
    state = 'queued'
    if deaths >= limit then
      state = 'dying'
      redis.call('HSET', key, 'reason', 'worker-lost', 'died', gen)
    end
  end
  -- Its locks stay until they expire: their old owner may still be alive.
  requeue(id, state, record.stream, tonumber(gen), now)
  return true
end
