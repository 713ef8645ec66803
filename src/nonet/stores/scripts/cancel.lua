#!lua flags=allow-oom
-- cancel: end tasks that do not run, and order the workers of running tasks to cancel them. A task that waits for
-- SQL stays.
-- KEYS  prefix
-- ARGV  keeping, 1 if unknown ids are durable tasks in SQL else 0, who and why for
--       running tasks, or '' to leave them alone; who and why for callers that wait for a result; n × (id, class for
--       an unknown id in SQL or '')
-- returns n × the state of the task now: cancelled, also if it was before; cancelling: its worker is notified,
--       or the next one that can read its newer format; '' if it is unknown
-- @include base wake record counting submitting limits mutexes locks index group keeping finish fitting pauses queues refusal waiting cancel ending
-- @defer ending workflow load_end_steps
end_steps = load_end_steps
local is_in_sql, text, why, FIRST, ONE_HOUR = ARGV[2] == '1', ARGV[3], ARGV[4], 5, 3600000

local documents = {}  -- of tasks without an attempt, by class
local function document_of(name, attempt)
  local used = tonumber(attempt or '') or 0
  if used > 0 then
    return made_document(name, used, why, 'cancelled')
  end
  documents[name] = documents[name] or made_document(name, 0, why, 'cancelled')
  return documents[name]
end

-- Most cancelled tasks were never delivered, never waited for a lock, and concern no other task. Their keys and
-- pointers are collected, and removed together after all results were written: see remove_plain().
local gone, lines, counts, entries, later, dated = {}, {}, {}, {}, {}, {}
local reason = string.gsub(string.sub(why, 1, 100), '%c', ' ')  -- in the history, see keep_end

local function is_plain(record)
  return record.stream and (record.state == 'queued' or record.state == 'delayed')
    and not (record.fence or record.settled or record.group or record.opens or record.waited or record.unique
      or record.saved or record.workflow or record.suspect or record.letter or record.places or record.since or record.unfit)
end

local function end_plainly(id, record, document)
  remember(id, 'cancelled|0|', document)
  if most_ends > 0 then
    local name = string.gsub(record.name or '', '%c', '?')
    lines[#lines + 1] = line_of(id, record, 'cancelled', name) .. '\t' .. reason
  end
  gone[#gone + 1] = id
  add_to(counts, record.stream, record, -1, -counted_bytes(id, record))
  local stream, entry = pointer_of(record)
  if record.state == 'delayed' then
    later[#later + 1] = id
  elseif stream then
    entries[P .. stream] = entries[P .. stream] or {}
    table.insert(entries[P .. stream], entry)
  end
  if record.start_by then
    dated[#dated + 1] = id
  end
end

local function remove_plain()
  if #gone == 0 then
    return
  end
  if #lines > 0 then
    keep_lines('cancelled', lines)
  end
  records.drop(gone)
  count_active(counts)
  for key, those in pairs(entries) do
    redis.call('XDEL', key, unpack(those))
    redis.call('XACK', key, 'workers', unpack(those))
  end
  if #later > 0 then
    redis.call('ZREM', P .. 'tasks:delayed', unpack(later))
  end
  if #dated > 0 then
    redis.call('ZREM', P .. 'deadlines', unpack(dated))
  end
end

-- Order a running task to be cancelled. It is never executed again. A later order does not replace the reason. Its
-- worker polls these orders every second.
local function order(id, record)
  change(id, {cancel = record.cancel or string.sub(text, 1, 60)})
  if record.state == 'running' then
    local orders = P .. 'orders:' .. (record.owner or '')
    redis.call('SADD', orders, id)  -- fault: cancel-not-ordered
    redis.call('PEXPIRE', orders, ONE_HOUR)
  elseif record.state ~= 'queued' then  -- a newer format: the next newer worker that reads it ends it
    delay(id, now)
  end
  return 'cancelling'
end

local ended = {}  -- by this call: a repeated id finds the record that remove_plain() has yet to remove
local function cancel(id, class)
  local record = read_record(id)
  if ended[id] then
    return 'cancelled'
  elseif is_cancellable(record) then
    local document = document_of(record.name or '', record.attempt)  -- fault: cancelled-child-unknown
    if is_plain(record) then
      end_plainly(id, record, document)
    else
      end_waiting(id, record, 'cancelled', document)
    end
    ended[id] = true
    return 'cancelled'
  elseif text ~= '' and (record.state == 'running' or AT_REST[record.state] and newer_format(record)) then
    return order(id, record)
  elseif record.state and record.stream ~= 'hold' then
    return record.state
  end
  local stored = redis.call('GETRANGE', P .. 'r:' .. id, 0, 63)
  if stored == '' and is_in_sql then
    -- Store the end although Redis does not know the task: a relay may be submitting it at this moment.
    finish(id, {}, 'cancelled', '0', document_of(class))
    return 'cancelled'
  end
  return string.match(stored, '^[^|]*')
end

local answer = {}
for i = FIRST, #ARGV, 2 do
  answer[#answer + 1] = cancel(ARGV[i], ARGV[i + 1])
end
remove_plain()
offer_all()
return answer
