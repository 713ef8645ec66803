-- lib/recounting: needs base, listed, counting, hashes. Corrects the counts of lib/counting after a walk over all
-- records. HASH COUNT:walk has what the walk has counted so far, COUNT:missed the differences that may not be real.
local keep_met, correct_counts
do
  local ALIKE, KEPT_FOR = 6, 86400000

  -- A value that changes when entries are added to or removed from the streams.
  local function state_of(stream)
    local parts = {}
    for _, kind in ipairs(STREAM_KINDS) do
      local info = redis.pcall('XINFO', 'STREAM', P .. kind .. ':' .. stream)
      for i = 1, info.err and 0 or #info, 2 do
        if info[i] == 'length' or info[i] == 'last-generated-id' then
          parts[#parts + 1] = tostring(info[i + 1])
        end
      end
      parts[#parts + 1] = tostring(listed(kind, stream))
    end
    return table.concat(parts, ',')
  end

  -- Whether the difference between a count and what a walk has met is real, and what to remember about it. Tasks are
  -- created and end during a walk of several pages: it may have counted a task that has ended since, and missed a task
  -- that was created behind it. So two walks must find the same difference while nothing happened in the stream, or
  -- ALIKE walks in any case. The tasks of a tenant are in many streams.
  local function is_missing(key, field, miss, count)
    local now_seen = digits(miss) .. '|' .. digits(count)
    local stream = key == P .. 'active' and string.match(field, '^[^|]*')
    local state = stream and state_of(stream) or ''
    local seen, was, times = string.match(redis.call('HGET', key .. ':missed', field) or '',
      '^([^|]*|[^|]*)|([^|]*)|(%d+)$')
    times = seen == now_seen and tonumber(times) + 1 or 1
    local is_sure = times > 1 and (state ~= '' and was == state or times >= ALIKE)
    return is_sure, now_seen .. '|' .. state .. '|' .. times
  end

  local function correct(key, is_exact)
    local counts, missed = {}, {}
    for which, from in ipairs({key, key .. ':walk'}) do
      for field, number in pairs(read_hash(from)) do
        counts[field] = counts[field] or {0, 0}
        if string.find(number, '^%-?%d+$') and #number < 16 then
          counts[field][which] = tonumber(number)
        else
          redis.call('HDEL', from, field)  -- another program has written it
        end
      end
    end
    for field, count in pairs(counts) do
      local miss, is_sure, note = count[2] - count[1], false, ''
      if miss ~= 0 then
        is_sure, note = is_missing(key, field, miss, count[1])
      end
      if miss ~= 0 and (is_exact or is_sure) then
        if redis.call('HINCRBY', key, field, digits(miss)) <= 0 then
          redis.call('HDEL', key, field)
        end
      elseif miss == 0 and count[1] == 0 then
        redis.call('HDEL', key, field)
      elseif miss ~= 0 then
        missed[#missed + 1], missed[#missed + 2] = field, note
      end
    end
    redis.call('DEL', key .. ':walk', key .. ':missed')
    if #missed > 0 then
      redis.call('HSET', key .. ':missed', unpack(missed, 1, math.min(#missed, 200)))
      redis.call('PEXPIRE', key .. ':missed', KEPT_FOR)
    end
  end

  -- Correct all counts at the end of a walk. is_exact: it was one call, so that no task came or went meanwhile.
  function correct_counts(is_exact)
    for key in pairs(COUNTED) do
      correct(P .. key, is_exact)
    end
  end

  -- Keep the tasks of a page of the walk, as add_to() has added them up.
  function keep_met(met, is_first_page)
    for key in pairs(COUNTED) do
      local walk = P .. key .. ':walk'
      if is_first_page then
        redis.call('DEL', walk)
      end
      for field, number in pairs(met[key] or {}) do
        redis.call('HINCRBY', walk, field, number)
      end
      if met[key] then
        redis.call('PEXPIRE', walk, KEPT_FOR)
      end
    end
  end
end
