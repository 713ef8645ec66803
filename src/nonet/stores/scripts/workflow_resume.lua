#!lua
-- workflow_resume: one part of resuming a failed workflow. Each part can be repeated.
-- KEYS  prefix
-- ARGV  keeping, workflow, verb, and what it takes:
--       spare, n × place          these do not run again: their failures were taken over
--       begin                     it is resuming from now on
--       link, place, first        let the successors that run again wait for this step; at most 500 edges from first on
--       create, n × place         create these steps again
--       start                     release those whose predecessors do not run again
-- returns spare, begin: its state before, or ''; link: the next first, or -1; create, start: the state
-- @include base wake record counting submitting index group keeping finish ending workflow staging
local workflow, verb = ARGV[2], ARGV[3]
local key = P .. 'f:' .. workflow
local state = redis.call('HGET', key, 'state')

local function begin()
  if state == 'failed' then
    for _, suffix in ipairs({'', ':results', ':graph', ':failed', ':signals'}) do
      redis.call('PERSIST', key .. suffix)
    end
    redis.call('HDEL', key, 'failed', 'first', 'ended')
    redis.call('HINCRBY', key, 'runs', 1)
    redis.call('DEL', P .. 'r:' .. workflow)
    redis.call('SADD', P .. 'workflows:work', workflow)
    enter(workflow, 'resuming')
  end
  return state or ''
end

local function spare()
  for i = 4, state == 'failed' and #ARGV or 0 do
    redis.call('DEL', P .. 's:' .. step_id(workflow, ARGV[i]))
    redis.call('SREM', key .. ':failed', ARGV[i])
  end
  return state or ''
end

local function link(place, first)
  local id, MOST = step_id(workflow, place), 500
  if above(place) then
    redis.call('HDEL', P .. 'k:' .. step_id(workflow, above(place)), 'failed')
    redis.call('SADD', P .. 'j:' .. step_id(workflow, above(place)), place)
  end
  if first == 0 then  -- the promoter may not have followed all edges of the run that failed
    redis.call('ZREM', P .. 'edges', 'failed ' .. id)
  end
  local page = redis.call('LRANGE', P .. 'n:' .. id, first, first + MOST - 1)
  for _, edge in ipairs(page) do
    local target = step_id(workflow, string.sub(edge, 2))
    if redis.call('EXISTS', P .. 's:' .. target) == 1 then
      redis.call('SADD', P .. 'm:' .. target, place)
    end
  end
  return #page == MOST and first + MOST or -1
end

-- The set of failed steps loses the places last: until then a repeated call creates the steps again.
local function create(places)
  local edges, steps, rows, ended, used = {entering = {}, leaving = {}}, {}, {}, {}, {}
  for _, place in ipairs(places) do
    local id = step_id(workflow, place)
    local kept = read_fields(P .. 's:' .. id, {'b', 'l', unpack(KEPT)})
    if kept.name and kept.stream then
      if redis.call('EXISTS', P .. 'm:' .. id) == 0 then
        note_edge(edges, 'a', '*', place)
      end
      kept.after = string.match(redis.call('HGET', key .. ':graph', place) or '', ' (.*)$') or ''
      steps[#steps + 1], ended[#ended + 1] = kept, place
      rows[#rows + 1] = {id, kept.name, kept.stream, kept.at or '0', '', kept.b or '', kept.l or ''}
      used[#used + 1], used[#used + 2] = P .. 'r:' .. id, P .. 's:' .. id
    end
  end
  if #steps > 0 then
    redis.call('HDEL', key .. ':results', unpack(ended))
    for i = 1, #used, 2 do
      redis.call('DEL', used[i])
    end
    write_edges(workflow, edges)
    stage(workflow, steps, rows)
    redis.call('DEL', unpack(used))
  end
  redis.call('SREM', key .. ':failed', unpack(places))
end

if verb == 'spare' or verb == 'begin' then
  return (verb == 'spare' and spare or begin)()
elseif state ~= 'resuming' then
  return state or ''
elseif verb == 'link' then
  return link(ARGV[4], tonumber(ARGV[5]))
elseif verb == 'create' then
  create({unpack(ARGV, 4)})
else
  start(workflow)
end
return redis.call('HGET', key, 'state')
