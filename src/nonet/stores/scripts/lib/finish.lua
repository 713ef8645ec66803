-- lib/finish: needs base, keeping, wake, record, counting, submitting, group. Moves a task to a terminal state.
-- settle.lua has its own short form for the plain success of many tasks.

-- Keep the end of a task in the history. Of cancelled tasks and failures it keeps parts of the result document.
local keep_end
do
  -- Bytes that the history keeps of a failure: of its error, of its traceback, and of all. Encrypted texts (see
  -- nonet/base/messages/encryption.py) are kept whole or not at all.
  local ERROR_KEPT, TRACEBACK_KEPT, FAILURE_KEPT = 600, 4096, 5000
  local MARK, ENCRYPTED_KEPT = 'nonet-encrypted:', 6000

  -- What follows the line of a failure: its envelope, so that it can be submitted again, unless it is large.
  local function envelope_kept(id, record, room)
    local envelope = records.envelope(id, record, math.max(0, room) + 1)
    return #envelope <= room and envelope or ''
  end

  function keep_end(id, record, state, document)
    if most_ends == 0 then
      return
    end
    if state == 'done' then
      return keep_lines(state, {line_of(id, record, state)})
    end
    local fine, parts = pcall(cmsgpack.unpack, document)
    parts = fine and type(parts) == 'table' and parts or {}
    local function part(at, first, last)
      local text = type(parts[at]) == 'string' and parts[at] or ''
      if string.sub(text, 1, #MARK) == MARK then
        return #text <= ENCRYPTED_KEPT and text or ''
      end
      return string.sub(text, first, last)
    end
    local name = string.gsub(record.name or part(1, 1, 255), '%c', '?')
    local line = line_of(id, record, state, name)
    if state == 'cancelled' then
      line = line .. '\t' .. string.gsub(part(6, 1, 100), '%c', ' ')
      return keep_lines(state, {line})
    end
    local kept = {part(7, 1, 30), part(5, 1, 100), part(6, 1, ERROR_KEPT), part(12, -TRACEBACK_KEPT, -1)}
    local whole = table.concat(kept)
    kept[5] = record.state and kept[1] ~= 'quarantined'
      and envelope_kept(id, record, FAILURE_KEPT - #line - #whole) or ''
    line = line .. '\t' .. (type(parts[2]) == 'number' and parts[2] or record.attempt or '0')
    for _, text in ipairs(kept) do
      line = line .. '\t' .. #text
    end
    keep_lines(state, {line .. '\n' .. whole .. kept[5]})
  end
end

-- lib/workflow sets this: it ends steps, each {id, record, state, result}. Field `adds` of a record: this call has added
-- steps.
local end_steps

-- End a task: store its result, and notify its group, its workflow and its waiters. record is what read_record()
-- returned; empty for a task that Redis does not know. fence: of the delivery that this call ends, '0' without one.
local function finish(id, record, state, fence, document)
  local value = state .. '|' .. fence .. '|'
  local mark = record.letter and ' ' .. record.letter or ''
  remember(id, state .. '|' .. fence .. mark .. '|', document)
  keep_end(id, record, state, document)
  if record.group then  -- fault: group-not-informed
    end_child(record.group, id, state, value .. document)
  end
  if record.workflow then
    end_steps({{id, record, state, value .. document}})
  end
  if record.opens then  -- fault: open-group-waits-forever
    fail_unsealed(id)
  end
  if record.waited then
    tell_waiters(id)
  end
  if record.unique then
    give_key_up(id, record.unique)
  end
  local bytes = counted_bytes(id, record)
  records.drop({id})
  redis.call('DEL', P .. 'e:' .. id,  -- fault: error-kept
    P .. 'h:' .. id, P .. 'c:' .. id)  -- fault: history-kept
  if record.stream then
    count_one(record.stream, record, -1, bytes)
  end
end

-- Remove the pointers to a task: its stream entry, and its members in the sets of times. Call it last: a reader
-- drops an entry whose task is gone.
local function drop_pointers(id, record)
  local key, entry = pointer_of(record)
  if key and (record.state == 'queued' or record.state == 'dying') then
    drop(P .. key, entry)
  end
  redis.call('ZREM', P .. 'tasks:delayed', id)
  redis.call('ZREM', P .. 'deadlines', id)
end
