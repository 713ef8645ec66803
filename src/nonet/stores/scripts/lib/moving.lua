-- lib/moving: needs base, routing, events. Tenants that an operator moves, see depart and arrive.

-- Let the tasks of a tenant go to a namespace, whatever the configuration says. The mark comes first: without it no
-- script reads the routes.
local function move_by_hand(tenant, namespace, who)
  if marks[7] and home_of(tenant) == namespace then
    return
  end
  redis.call('SET', P .. 'routed', 'moved', 'NX')
  redis.call('HSET', P .. 'routes', 'moved:' .. tenant, namespace)
  log_event('tenant-moved', who, tenant .. ' to ' .. namespace)
end
