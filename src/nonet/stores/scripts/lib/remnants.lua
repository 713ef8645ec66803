-- lib/remnants: needs base, record, group, finish, ending, workflow, followed. Fires groups that wait for children or a parent that
-- are gone, so that their waiters are notified; and ends steps of workflows that nothing would release.

local KEYS_OF_GROUP = {'', ':pending', ':results', ':callback', ':on_failure'}

-- Treat a group as one whose parent has ended without sealing it.
local function fail_group(key, problem)
  redis.call('HSET', key, 'state', 'sealed', 'failed', 1, 'policy', 'all_success', 'error', problem)
  redis.call('PERSIST', key)
end

-- Some of the pending children that have no record.
local function missing_children(key)
  local found, MOST = {}, 100
  for _, child in ipairs(redis.call('SSCAN', key .. ':pending', '0', 'COUNT', MOST)[2]) do
    if not records.has(child) then
      found[#found + 1] = child
    end
  end
  return found
end

local function end_missing(gid, child)
  local ended = redis.call('GET', P .. 'r:' .. child)
  if ended then
    return end_child(gid, child, string.match(ended, '^%a+') or 'dead', ended)
  end
  local document = made_document('', 0, 'its record is gone from Redis', 'quarantined')
  finish(child, {group = gid, waited = true}, 'dead', '0', document)
end

-- Since when something misses tasks, as its hash notes it, and how to note it.
local function noted_in(key)
  return redis.call('HGET', key, 'missing'), function(at)
    if at then
      redis.call('HSET', key, 'missing', at)
    else
      redis.call('HDEL', key, 'missing')
    end
  end
end

-- Whether the tasks that a group or a step waits for have been gone for more than `wait` µs. The relay submits lost
-- durable tasks again within that time. missing: since when, as it was noted; note: notes it.
local function is_gone_for_good(is_gone, wait, missing, note)
  local since = tonumber(missing or '')
  if not is_gone ~= not since then
    note(is_gone and digits(now))
  end
  return is_gone and since ~= nil and now - since > wait
end

-- name: of one of the keys of a group. A fired group expires by itself.
local function mend_group(name, wait)
  local gid = name
  for _, suffix in ipairs(KEYS_OF_GROUP) do
    gid = suffix ~= '' and string.sub(name, -#suffix) == suffix and string.sub(name, 1, -#suffix - 1) or gid
  end
  local key, is_lasting = P .. 'g:' .. gid, redis.call('PTTL', P .. 'g:' .. name) == -1
  local left = redis.call('PTTL', key)
  if left == -2 then
    -- Redis lost the group while its children were submitted. The next attempt of the parent opens it again.
    local ONE_DAY = 86400000
    redis.call('PEXPIRE', P .. 'g:' .. name, ONE_DAY, 'NX')
    return
  elseif gid ~= name then
    if is_lasting and left >= 0 then  -- written again after the group had fired
      redis.call('PEXPIRE', P .. 'g:' .. name, left)
    end
    return
  elseif not is_lasting and redis.call('HEXISTS', key, 'fired') == 1 then
    return
  end
  local group = read_fields(key, {'state', 'parent'})
  local orphaned = group.state == 'building' and is_lasting and group.parent
    and not records.has(group.parent)
  local missing = group.state == 'sealed' and missing_children(key) or {}
  if is_gone_for_good(orphaned or #missing > 0, wait, noted_in(key)) then
    if orphaned then
      fail_group(key, 'the parent ended before it had spawned all children')
    end
    for _, child in ipairs(missing) do
      end_missing(gid, child)
    end
  end
  fire_if_complete(gid)
end

-- The predecessors of a step, each a letter and a place.
local function edges_to(key, place)
  local after, found = string.match(redis.call('HGET', key .. ':graph', place) or '', ' (.*)$') or '', {}
  for letter, from in string.gmatch(after, '(%l)(%S+)') do
    found[from] = letter
  end
  return next(found) and found or {['*'] = 'a'}
end

-- How a step has ended for its edges, as far as that is known.
local function how_ended(key, from)
  local ended = redis.call('HGET', key .. ':results', from)
  if redis.call('SISMEMBER', key .. ':failed', from) == 1 then
    return 'failed'
  elseif string.find(from, '^[*@]') or ended and string.find(ended, '^done') then
    return 'done'
  end
  return ended and 'taken' or 'failed'
end

-- Follow edges to a blocked step from predecessors that will not do so themselves: a script that ended them was cut.
local function follow_lost(id, record, workflow, place, wait)
  local key, missing, lost = P .. 'f:' .. workflow, P .. 'm:' .. id, {}
  local those = redis.call('SSCAN', missing, '0', 'COUNT', 20)[2]
  for _, from in ipairs(those) do
    if is_lost_step(workflow, from) then
      lost[#lost + 1] = from
    end
  end
  local is_forgotten = #those == 0
  if not is_gone_for_good(is_forgotten or #lost > 0, wait, record.missing, function(at)
      change(id, {missing = at})
    end) then
    return
  end
  local edges = edges_to(key, place)
  if is_forgotten then  -- the next walk finds which of them are lost
    for from in pairs(edges) do
      redis.call('SADD', missing, from)
    end
  end
  for _, from in ipairs(lost) do
    follow(from, how_ended(key, from), edges[from] or 'a', workflow, place)
    write_collected()
    end_unable()
  end
  end_workflow(workflow)
end

-- Check a blocked step: its workflow may be gone, or predecessors that it waits for; or a script that ended it was cut.
local function mend_step(id, fields, wait)
  local workflow, place = fields.workflow or '', place_of(id)
  local flow, ended = flow_of(workflow), redis.call('HGET', P .. 'f:' .. workflow .. ':results', place)
  if not flow.state or ended or fields.ends_as then
    local record, state, fence, document = read_record(id), string.match(ended or '', '^(%a+)|([^|]*)|(.*)$')
    finish(id, record, state or 'cancelled', fence or '0', document
      or made_document(record.name or '', 0, record.why or 'cancelled: its workflow is gone from Redis', 'cancelled'))
    redis.call('ZREM', P .. 'tasks:delayed', id)
    end_unable()
  elseif flow.state == 'running' and not flow.cancel then
    follow_lost(id, fields, workflow, place, wait)
  end
end

-- The workflow to which a key f:NAME belongs.
local function owner_of_key(name)
  for _, suffix in ipairs(KEYS_OF_WORKFLOW) do
    if suffix ~= '' and string.sub(name, -#suffix) == suffix then
      return string.sub(name, 1, -#suffix - 1)
    end
  end
  return name
end

-- End steps whose records are gone, and a workflow that has nothing left to run.
local function mend_workflow(name, wait)
  local workflow = owner_of_key(name)
  local key, state = P .. 'f:' .. workflow, flow_of(workflow).state
  if not state then
    redis.call('PEXPIRE', P .. 'f:' .. name, 86400000, 'NX')
  end
  if workflow ~= name or state ~= 'running' then
    return
  end
  local lost, LOOKS, MOST = {}, 1000, 100
  local first = redis.call('HGET', key, 'walked') or '0'
  local page = redis.call('SSCAN', key .. ':live', first, 'COUNT', LOOKS)
  for _, place in ipairs(page[2]) do
    if #lost < MOST and not records.has(step_id(workflow, place)) then
      lost[#lost + 1] = place
    end
  end
  if #lost == 0 and page[1] ~= first then  -- else the next walk looks at this page again
    redis.call('HSET', key, 'walked', page[1])
  end
  if is_gone_for_good(#lost > 0, wait, noted_in(key)) then
    for _, place in ipairs(lost) do
      local id, letters = step_id(workflow, place), {}
      for _, edge in ipairs(redis.call('LRANGE', P .. 'n:' .. id, 0, 500)) do
        letters[string.sub(edge, 1, 1)] = true
      end
      local edges = (letters.s and 's' or '') .. (letters.f and 'f' or '') .. (letters.a and 'a' or '')
      -- It may have ended, in a script that was cut.
      local state, fence, document = string.match(redis.call('HGET', key .. ':results', place) or '',
        '^(%a+)|([^|]*)|(.*)$')
      finish(id, {workflow = workflow, edges = edges, waited = true, blocked = true}, state or 'dead', fence or '0',
        document or made_document('', 0, 'its record is gone from Redis', 'quarantined'))
    end
  end
  end_workflow(workflow)
end
