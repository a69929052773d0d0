-- The queues of one pool.
-- KEYS[1]: tenants with ids, by the number of their turn. KEYS[2]: the same, by the number of their ids.
-- KEYS[3]: hash of `total` (ids), `turn` (the last number) and `more` (present if the database may have more jobs).
-- KEYS[4], KEYS[5]: while present, a process scans for the whole window, or has checked recently.
-- KEYS[6]: the beginning of the keys of the tenants' queues. A queue is a sorted set of ids: a higher priority has a
-- lower score, and within a score members are in the order of their text, which begins with the due time.
local turns, sizes, state = KEYS[1], KEYS[2], KEYS[3]
local total = tonumber(redis.call('HGET', state, 'total') or 0)
local known = redis.call('EXISTS', turns)
if known ~= redis.call('EXISTS', sizes) or (known == 1) ~= (total > 0) then
  -- Some of them were evicted.
  redis.call('DEL', turns, sizes)
  redis.call('HSET', state, 'more', 1)
  total = 0
end
-- After a change of a tenant's queue. A tenant that had no ids comes last.
local function count(tenant)
  local before = redis.call('ZSCORE', sizes, tenant)
  local now = redis.call('ZCARD', KEYS[6] .. tenant)
  if now == 0 then
    redis.call('ZREM', turns, tenant)
    redis.call('ZREM', sizes, tenant)
  else
    redis.call('ZADD', sizes, now, tenant)
    if not before then
      redis.call('ZADD', turns, redis.call('HINCRBY', state, 'turn', 1), tenant)
    end
  end
  total = total + now - tonumber(before or 0)
end
local function keep(life)
  redis.call('HSET', state, 'total', total)
  for i = 1, 3 do
    redis.call('PEXPIRE', KEYS[i], life)
  end
end
