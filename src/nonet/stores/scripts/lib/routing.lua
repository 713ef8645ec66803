-- lib/routing: needs now. To which namespace a task belongs, by its tenant. HASH routes: tenant, or '*' for those that are
-- not listed -> namespace, as configured; moved:TENANT -> namespace, if an operator has moved it and the configuration does
-- not say so yet; came:TENANT -> 'the namespace from which it was moved here last|until when (µs, wall clock)
-- that knows its ids'. STRING routed exists while the hash does.

-- Where the tasks of a tenant belong; nil: where they are submitted.
local function home_of(tenant)
  local found = redis.call('HMGET', P .. 'routes', 'moved:' .. tenant, tenant, '*')
  return found[1] or found[2] or found[3] or nil
end

-- The namespace to which these terms send a task, unless it is this one; nil: it belongs here.
local function elsewhere(terms)
  local home = marks[7] and home_of(string.match('\n' .. terms, '\ntenant|([^\n]*)') or '')
  return home and home ~= string.sub(P, 2, -3) and home or nil
end
