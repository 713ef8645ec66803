#!lua flags=no-writes
-- list: find the live tasks in one page of a place. It changes nothing.
-- KEYS  prefix
-- ARGV  place: records (all records, in no order) | delayed (the delayed set, by time) | unread, delivered (the
--       entries of a stream that no worker has read, or that one has) | listed (the lists of the tenants that share a
--       stream) | named (the tasks whose ids are in the place of where to begin, between blanks); name of the stream
--       or ''; where to begin, '' at first; how many to examine; full or bare class name, or ''; workers that have it,
--       between blanks, or '';
--       text of its last error in lower case, or ''; first and last time of its submission (µs), or ''; its tenant, or
--       ''; n × wanted state, none: any
-- returns {where the next page begins, '' at the end; how many were examined; n × (id, state, class, since when it is
--       in this state or for a delayed task when it is due (µs; not in records), its entry or '')}
-- @include base listed unread
local place, stream, start, count, class = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local workers, text, earliest, latest = ARGV[6], ARGV[7], tonumber(ARGV[8]), tonumber(ARGV[9])
local tenant, FIRST_STATE = ARGV[10], 11
local wanted = ARGV[FIRST_STATE] and {}
for i = FIRST_STATE, #ARGV do
  wanted[ARGV[i]] = true
end
local answer = {'', 0}

local function is_wanted(record)
  if not record.state or record.stream == 'hold' or wanted and not wanted[record.state] then
    return false
  end
  local name = record.name or ''
  if class ~= '' and name ~= class and string.match(name, '[^:]*$') ~= class then
    return false
  end
  if tenant ~= '' and record.tenant ~= tenant then
    return false
  end
  local has = (record.state == 'running' or record.state == 'dying') and record.owner or ''
  if workers ~= '' and (has == '' or not string.find(workers, ' ' .. has .. ' ', 1, true)) then
    return false
  end
  if text ~= '' and not string.find(string.lower(record.error or ''), text, 1, true) then
    return false
  end
  local at = (earliest or latest) and tonumber(ticket_of(record) or '0')
  return not at or at >= (earliest or 0) and at <= (latest or at)
end

-- Since when (µs) a task is in its state, as far as its record says so.
local function since(record)
  return record.state == 'running' and record.started or record.state == 'waiting' and (record.since or record.put)
    or ticket_of(record) or '0'
end

-- Examine one task. gen and entry: of the pointer to it, in a list the time of its gen; due: its time in the delayed set.
local function examine(id, gen, entry, due)
  answer[2] = answer[2] + 1
  local record = read_record(id)
  if is_wanted(record) and (not gen or not record.gen or record.gen == gen) then
    local n = #answer
    answer[n + 1], answer[n + 2], answer[n + 3] = id, record.state, record.name or ''
    answer[n + 4], answer[n + 5] = record.state == 'delayed' and due or since(record), entry or ''
  end
end

local function read_records()
  local page = redis.call('SCAN', start == '' and '0' or start, 'MATCH', P .. 't:*', 'COUNT', count)
  for _, key in ipairs(page[2]) do
    examine(string.sub(key, #P + 3))
  end
  return page[1] ~= '0' and page[1] or ''
end

-- The rank of the first member behind 'score member'. If that member is elsewhere by now, begin with the first member
-- of its score: a task may be examined twice, but none is skipped.
local function rank_behind(position)
  local score, member = string.match(position, '^(%S+) (.*)$')
  if not score then
    return 0
  elseif redis.call('ZSCORE', P .. 'tasks:delayed', member) == score then
    return redis.call('ZRANK', P .. 'tasks:delayed', member) + 1
  end
  return redis.call('ZCOUNT', P .. 'tasks:delayed', '-inf', '(' .. score)
end

local function read_named()
  for id in string.gmatch(start, '%S+') do
    examine(id)
  end
  return ''
end

local function read_delayed()
  local first = rank_behind(start)
  local page = redis.call('ZRANGE', P .. 'tasks:delayed', first, first + count - 1, 'WITHSCORES')
  for i = 1, #page, 2 do
    examine(page[i], nil, nil, page[i + 1])
  end
  return #page == 2 * count and page[#page] .. ' ' .. page[#page - 1] or ''
end

-- The lists of tenants, one after the other by their names. Where to begin: 'TENANT\nPOINTER', behind that pointer; at
-- the first of that list if a worker has it by now.
local function read_lists()
  local from, pointer = string.match(start, '^([^\n]*)\n(.*)$')
  local left, position = count, ''
  local kind, of = string.match(stream, '^(%l+):(.*)$')
  each_list(kind, of, from, function(key, tenant)
    local first = from == tenant and (redis.call('LPOS', key, pointer) or -1) + 1 or 0
    for _, found in ipairs(redis.call('LRANGE', key, first, first + left - 1)) do
      local id, gen = string.match(found, '^(.*) (%d+)$')
      if id then
        examine(id, gen, string.sub(gen, 1, -4) .. '-' .. string.sub(gen, -3))
      end
      left, position = left - 1, tenant .. '\n' .. found
    end
    return left <= 0
  end)
  return left <= 0 and position or ''
end

local function read_stream()
  local key = P .. stream
  local _, behind = unread(key)  -- behind the last entry that was delivered
  local last = place == 'unread' and '+' or string.match(behind, '^%((.*)$') or '0-0'
  local first = start ~= '' and start or place == 'unread' and behind or '-'
  local page = redis.call('XRANGE', key, first, last, 'COUNT', count)
  for _, item in ipairs(page) do
    local fields = item[2]
    if fields[1] == 'id' and fields[3] == 'gen' then
      examine(fields[2], fields[4], item[1])
    else
      answer[2] = answer[2] + 1
    end
  end
  return #page == count and '(' .. page[count][1] or ''
end

local READ = {records = read_records, named = read_named, delayed = read_delayed, unread = read_stream, delivered = read_stream, listed = read_lists}
answer[1] = READ[place]()
return answer
