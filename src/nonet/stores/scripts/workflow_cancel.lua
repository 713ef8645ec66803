#!lua flags=allow-oom
-- workflow_cancel: mark a workflow as cancelled: no step is released any more. The caller then cancels its steps.
-- KEYS  prefix
-- ARGV  keeping, workflow, why
-- returns its state, or '' if it is unknown
-- @include base wake record counting submitting index group keeping finish ending workflow
local workflow = ARGV[2]
local key = P .. 'f:' .. workflow
local state = redis.call('HGET', key, 'state')
if state == 'building' or state == 'running' or state == 'resuming' then
  redis.call('HSETNX', key, 'cancel', ARGV[3])
  redis.call('SADD', P .. 'workflows:work', workflow)
  if state == 'resuming' then  -- what was not created again stays failed
    enter(workflow, 'running')
  end
  end_workflow(workflow)
end
return redis.call('HGET', key, 'state') or ''
