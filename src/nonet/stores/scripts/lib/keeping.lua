-- lib/keeping: needs plain. Keeps results, ids and history lines of tasks that have ended.

local remember, line_of, keep_lines, most_ends
do
  -- What this call keeps of the tasks that it ends. ARGV[1] of every script that ends tasks is its keeping:
  -- 'result ttl ms|ttl of an ended id ms|ends in the history'. Most calls of the other scripts end none, so it is
  -- read at the first end.
  local kept_ms, has_results, ended_at

  local function read_keeping()
    local ttl, dedup, ends = string.match(ARGV[1], '^(%d+)|(%d+)|(%d+)$')
    ttl, dedup, most_ends = tonumber(ttl), tonumber(dedup), tonumber(ends)
    has_results, kept_ms, ended_at = ttl > 0, digits(math.max(ttl, dedup)), digits(now)  -- fault: result-forgotten-early
  end

  -- Store the result of a task, or without a result ttl only that it ended. value is 'state|fence|', or
  -- 'state|fence mark|' for a task that repeats a dead letter. document is opaque.
  function remember(id, value, document)
    if not kept_ms then
      read_keeping()
    end
    redis.call('SET', P .. 'r:' .. id, has_results and value .. document or value, 'PX', kept_ms)  -- fault: id-forgotten
  end

  -- The line of the history about a task that ends, see nonet/stores/namespace/history.py. Call remember() before. Names
  -- and ids contain no tabs.
  function line_of(id, record, state, name)
    local has_run = record.state == 'running' or record.state == 'dying' and record.died == record.gen
    return state .. '\t' .. id .. '\t' .. (name or record.name or '') .. '\t' .. (record.stream or '') .. '\t'
      .. (record.attempt or '0') .. '\t' .. (ticket_of(record) or '') .. '\t'
      .. (has_run and record.started or '') .. '\t' .. ended_at .. '\t' .. (has_run and record.owner or '')
  end

  -- Append lines to the history. Each state has a list of its own, so that many ends of one kind push out no end of
  -- another. Lines of failures are longer, so their lists have a tenth of the lines. A list is cut a little later than
  -- it is full, so that most calls need no second command.
  function keep_lines(state, lines)
    local key = P .. 'ended:' .. state
    local most = (state == 'dead' or state == 'expired') and math.ceil(most_ends / 10) or most_ends
    if redis.call('RPUSH', key, unpack(lines)) > most * 1.01 then
      redis.call('LTRIM', key, -most, -1)
    end
  end
end
