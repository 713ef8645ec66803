-- lib/followed: needs base. Finds edges of ended steps that no call will follow any more, see lib/workflow.

-- Whether an ended step has edges that a later call follows.
local function has_edges_left(step)
  for _, how in ipairs({'done', 'failed', 'taken', 'unneeded'}) do
    if redis.call('ZSCORE', P .. 'edges', how .. ' ' .. step) then
      return true
    end
  end
  return false
end

-- Whether nothing will follow the edges of a step: it has ended, and so have the steps that it added. A live step without
-- a record has not ended: lib/remnants ends it.
local function is_lost_step(workflow, place)
  if string.sub(place, 1, 1) == '@' then  -- an event is lost if it has come, but its step has not ended
    return redis.call('HEXISTS', P .. 'f:' .. workflow .. ':signals', string.sub(place, 2)) == 1
  end
  local step = workflow .. ':' .. place
  return not records.has(step) and redis.call('EXISTS', P .. 'j:' .. step) == 0
    and redis.call('SISMEMBER', P .. 'f:' .. workflow .. ':live', place) == 0 and not has_edges_left(step)
end
