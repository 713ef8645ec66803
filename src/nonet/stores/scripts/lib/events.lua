-- lib/events: needs now. The event stream: who changed what in this namespace, and when.

local MOST_EVENTS, MOST_NAMED = 10000, 20

-- Append an event: kind is a word for programs, who is user@host pid, text is for people.
local function log_event(kind, who, text)
  redis.call('XADD', P .. 'events', 'MAXLEN', '~', MOST_EVENTS, '*',
    'kind', kind, 'at', digits(now - offset), 'who', who, 'text', text)
end

-- The first of many texts, and how many more there are.
local function first_texts(texts, separator)
  local more = #texts > MOST_NAMED and separator .. 'and ' .. #texts - MOST_NAMED .. ' more' or ''
  return table.concat(texts, separator, 1, math.min(#texts, MOST_NAMED)) .. more
end
