-- Each GPU over the run: busy percent, share of readings with less than 10 %, GB, W, kJ, GB sent.
SELECT host, device, avg(value) FILTER (counter = 'gpu/busy_percent') AS busy_percent,
       count(*) FILTER (counter = 'gpu/busy_percent' AND value < 10)
           / nullif(count(*) FILTER (counter = 'gpu/busy_percent'), 0) AS idle_share,
       avg(value) FILTER (counter = 'gpu/memory_controller_busy_percent') AS memory_busy_percent,
       max(value) FILTER (counter = 'gpu/memory_used_bytes') / 1e9 AS memory_used_max_gb,
       max(value) FILTER (counter = 'gpu/memory_total_bytes') / 1e9 AS memory_gb,
       avg(value) FILTER (counter = 'gpu/power_watts') AS mean_watts,
       (max(value) FILTER (counter = 'gpu/energy_joules')
           - min(value) FILTER (counter = 'gpu/energy_joules')) / 1e3 AS energy_kj,
       (max(value) FILTER (counter = 'gpu/nvlink_sent_bytes')
           - min(value) FILTER (counter = 'gpu/nvlink_sent_bytes')) / 1e9 AS nvlink_sent_gb,
       (max(value) FILTER (counter = 'gpu/pcie_sent_bytes')
           - min(value) FILTER (counter = 'gpu/pcie_sent_bytes')) / 1e9 AS pcie_sent_gb
FROM samples
WHERE counter LIKE 'gpu/%'
GROUP BY host, node, device
ORDER BY host, device
