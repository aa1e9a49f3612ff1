'use strict';
(() => {
  const results = JSON.parse(document.getElementById('results').textContent);
  const root = document.documentElement;
  const LIGHT = ['#1f5fbf', '#d9591c', '#0b8a6a', '#a83291', '#8a6a00', '#5b4bc4', '#c0303f', '#2e8fa8', '#6b7a1e', '#7a5240'];
  const DARK = ['#6ea8ff', '#ff9a5c', '#3fd0a4', '#e37fd0', '#e0c04f', '#a99bff', '#ff8b93', '#67cbe0', '#b9cc5e', '#cfa48e'];
  const SYMBOLS = ['circle', 'rect', 'triangle', 'diamond', 'pin', 'arrow'];
  // A group keeps its color on the whole page, in order of first appearance; lines, where devices
  // stand side by side, before bars.
  const groups = new Map();
  const groupOf = s => s.group || s.name;
  for (const lines of [true, false]) for (const e of results.experiments) for (const c of e.charts)
    for (const s of (c.kind === 'line') === lines ? c.series : []) if (!groups.has(groupOf(s))) groups.set(groupOf(s), groups.size);
  const dark = () => root.dataset.theme === 'dark';

  // Within a chart two groups that share a palette slot would look alike: give later ones the free slots.
  function colors(chart) {
    const palette = dark() ? DARK : LIGHT, taken = new Map(), out = [];
    if (chart.series.length === 1 && chart.kind !== 'line') return [palette[0]];
    for (const s of chart.series) {
      const g = groupOf(s);
      if (!taken.has(g)) {
        let slot = groups.get(g) % palette.length;
        const used = new Set(taken.values());
        for (let i = 0; used.has(slot) && i < palette.length; i++) slot = (slot + 1) % palette.length;
        taken.set(g, slot);
      }
      out.push(palette[taken.get(g)]);
    }
    return out;
  }
  function short(v) {
    const a = Math.abs(v);
    if (a >= 1e9) return +(v / 1e9).toPrecision(3) + ' G';
    if (a >= 1e6) return +(v / 1e6).toPrecision(3) + ' M';
    if (a >= 1e4) return +(v / 1e3).toPrecision(3) + ' k';
    return String(+v.toPrecision(4));
  }
  function full(v) {
    if (v === null || v === undefined) return 'unknown';
    return Math.abs(v) >= 1000 ? Math.round(v).toLocaleString('en').replace(/,/g, '\u202f') : String(+v.toPrecision(4));
  }
  const named = axis => axis.label + (axis.unit ? ' (' + axis.unit + ')' : '');

  function option(chart) {
    const css = getComputedStyle(root), ink = css.getPropertyValue('--ink').trim(), soft = css.getPropertyValue('--soft').trim(),
      line = css.getPropertyValue('--line').trim(), panel = css.getPropertyValue('--panel').trim(), paint = colors(chart);
    const lying = chart.kind === 'row' || chart.kind === 'interval', lines = chart.kind === 'line';
    const names = [];
    if (!lines) for (const s of chart.series) for (const p of s.points) { const n = String(p.x); if (!names.includes(n)) names.push(n); }
    const text = { color: soft, fontSize: 12 };
    const values = {
      type: chart.y.log ? 'log' : 'value', name: named(chart.y), nameLocation: lying ? 'middle' : 'end', nameGap: lying ? 28 : 14, nameTextStyle: lying ? text : { color: soft, fontSize: 12, align: 'left', padding: [0, 0, 0, -12] },
      axisLabel: { color: soft, formatter: short }, splitLine: { lineStyle: { color: line } }, axisLine: { show: false }, min: chart.y.log ? undefined : v => Math.min(0, v.min),
    };
    const places = lines
      ? { type: chart.x.log ? 'log' : 'value', name: named(chart.x), nameLocation: 'middle', nameGap: 28, nameTextStyle: text, min: 'dataMin', max: 'dataMax',
          axisLabel: { color: soft, formatter: short }, splitLine: { show: false }, axisLine: { lineStyle: { color: line } } }
      : { type: 'category', data: names, inverse: lying, axisTick: { show: false }, axisLine: { lineStyle: { color: line } },
          axisLabel: { color: ink, interval: 0, fontSize: 12, width: lying ? 230 : undefined, overflow: 'truncate', hideOverlap: !lying } };
    const series = [];
    chart.series.forEach((s, i) => {
      const c = paint[i], published = s.role === 'published', formula = s.role === 'formula';
      const extra = {};
      if (i === 0 && chart.bands && chart.bands.length) extra.markArea = { silent: true, itemStyle: { color: dark() ? 'rgba(160,175,195,.10)' : 'rgba(40,60,90,.06)' },
        label: { color: soft, fontSize: 11, position: 'insideTop' }, data: chart.bands.map(b => [{ xAxis: b.from, name: b.label }, { xAxis: b.to }]) };
      if (i === 0 && chart.marks && chart.marks.length) extra.markLine = { silent: true, symbol: 'none', lineStyle: { color: soft, type: 'dashed', width: 1 },
        label: { color: soft, fontSize: 11, position: 'insideEndTop', formatter: m => m.name }, data: chart.marks.map(m => lying ? { xAxis: m.y, name: m.label } : { yAxis: m.y, name: m.label }) };
      if (lines) {
        const few = s.points.length <= 40;
        series.push(Object.assign({
          name: s.name, type: published ? 'scatter' : 'line', data: s.points.map(p => [p.x, p.y]), showSymbol: few, symbol: published ? 'diamond' : SYMBOLS[i % SYMBOLS.length],
          symbolSize: published ? 12 : 6, z: published ? 5 : 2, color: c, lineStyle: { width: 2, type: formula || s.dashed ? 'dashed' : 'solid' },
          itemStyle: published ? { color: panel, borderColor: c, borderWidth: 2 } : { color: c }, emphasis: { focus: 'series' },
        }, extra));
      } else if (chart.kind === 'interval') {
        const pick = f => names.map(n => { const p = s.points.find(q => String(q.x) === n); return p ? f(p) : null; });
        series.push(Object.assign({ name: s.name, type: 'bar', stack: 'low' + i, silent: true, itemStyle: { color: 'transparent' }, data: pick(p => p.low ?? p.y), barMaxWidth: 10, tooltip: { show: false } }, extra));
        series.push({ name: s.name, type: 'bar', stack: 'low' + i, itemStyle: { color: c, opacity: .55, borderRadius: 3 }, data: pick(p => p.low == null ? null : p.high - p.low), barMaxWidth: 10 });
        series.push({ name: s.name, type: 'scatter', symbolSize: 10, z: 5, itemStyle: published ? { color: panel, borderColor: c, borderWidth: 2 } : { color: c }, data: names.map((n, k) => [pick(p => p.y)[k], k]) });
      } else {
        const pick = names.map(n => { const p = s.points.find(q => String(q.x) === n); return p ? p.y : null; });
        series.push(Object.assign({ name: s.name, type: 'bar', data: pick, barMaxWidth: lying ? 16 : 34, barGap: '12%',
          itemStyle: published ? { color: 'transparent', borderColor: c, borderWidth: 2, borderType: 'dashed' } : { color: c, borderRadius: lying ? [0, 3, 3, 0] : [3, 3, 0, 0] }, emphasis: { focus: 'series' } }, extra));
      }
    });
    const legend = [...new Set(chart.series.map(s => s.name))];
    const find = (name, x) => { const s = chart.series.find(q => q.name === name); return s && s.points.find(p => String(p.x) === String(x)); };
    return {
      animation: false, textStyle: { fontFamily: 'inherit', color: ink }, backgroundColor: 'transparent',
      legend: legend.length > 1 ? { type: 'scroll', top: 0, left: 0, right: 0, data: legend, textStyle: { color: ink, fontSize: 12 }, itemWidth: 18, itemHeight: 9, pageTextStyle: { color: soft }, pageIconColor: ink } : { show: false },
      grid: { left: 8, right: 28, top: (legend.length > 1 ? 38 : 8) + (lying ? 4 : 26), bottom: lines ? 34 : lying ? 34 : 12, containLabel: true },
      tooltip: { trigger: lines ? 'axis' : 'axis', axisPointer: { type: lines ? 'line' : 'shadow' }, backgroundColor: panel, borderColor: line, textStyle: { color: ink, fontSize: 12 }, confine: true,
        formatter: rows => {
          const list = Array.isArray(rows) ? rows : [rows];
          if (!list.length) return '';
          const head = lines ? named(chart.x) + ': ' + full(list[0].axisValue) : list[0].axisValueLabel;
          const seen = new Set(), out = ['<b>' + esc(String(head)) + '</b>'];
          for (const r of list) {
            if (seen.has(r.seriesName)) continue;
            seen.add(r.seriesName);
            const p = lines ? { y: r.value[1] } : find(r.seriesName, list[0].axisValueLabel);
            if (!p) continue;
            const range = p.low == null ? '' : ' <small>(' + full(p.low) + ' … ' + full(p.high) + ')</small>';
            const mark = paint[chart.series.findIndex(s => s.name === r.seriesName)];
            out.push('<span style="color:' + mark + '">●</span> ' + esc(r.seriesName) + ': <b>' + full(p.y) + '</b> ' + esc(chart.y.unit || '') + range);
          }
          return out.join('<br>');
        } },
      xAxis: lying ? values : places, yAxis: lying ? places : values, series,
    };
  }
  const esc = t => t.replace(/[&<>"']/g, c => '&#' + c.charCodeAt(0) + ';');

  const charts = [];
  const chartOf = node => results.experiments.find(e => e.id === node.dataset.experiment).charts[+node.dataset.chart];
  function draw() {
    for (const node of document.querySelectorAll('.chart')) {
      const chart = chartOf(node);
      const entry = charts.find(c => c.node === node);
      const lying = chart.kind === 'row' || chart.kind === 'interval';
      if (lying) {
        const names = new Set(chart.series.flatMap(s => s.points.map(p => String(p.x)))).size;
        const bars = chart.kind === 'row' ? Math.max(1, chart.series.length) : 1;
        node.style.height = Math.max(180, 90 + names * (12 + 15 * bars)) + 'px';
      }
      const drawn = entry ? entry.drawn : echarts.init(node, null, { renderer: 'canvas' });
      if (!entry) charts.push({ node, drawn });
      drawn.setOption(option(chart), true);
    }
  }
  function theme(name) { root.dataset.theme = name; draw(); }
  const system = matchMedia('(prefers-color-scheme: dark)');
  const asked = /[?&#]theme=(dark|light)/.exec(location.href);
  theme(asked ? asked[1] : system.matches ? 'dark' : 'light');
  system.addEventListener('change', e => theme(e.matches ? 'dark' : 'light'));
  document.getElementById('theme').addEventListener('click', () => theme(dark() ? 'light' : 'dark'));
  addEventListener('resize', () => charts.forEach(c => c.drawn.resize()));

  function save(name, type, text) {
    const a = document.createElement('a');
    a.href = URL.createObjectURL(new Blob([text], { type }));
    a.download = name;
    a.click();
    URL.revokeObjectURL(a.href);
  }
  document.getElementById('save').addEventListener('click', () => save('results.json', 'application/json', JSON.stringify(results, null, 2) + '\n'));
  const quote = v => { const t = v === null || v === undefined ? '' : String(v); return /[",\n]/.test(t) ? '"' + t.replace(/"/g, '""') + '"' : t; };
  for (const b of document.querySelectorAll('.csv')) b.addEventListener('click', () => {
    const chart = chartOf(b), rows = [['series', 'role', named(chart.x), named(chart.y), 'low', 'high']];
    for (const s of chart.series) for (const p of s.points) rows.push([s.name, s.role, p.x, p.y, p.low, p.high]);
    save(b.dataset.experiment + '-' + chart.id + '.csv', 'text/csv', rows.map(r => r.map(quote).join(',')).join('\n') + '\n');
  });
  const links = [...document.querySelectorAll('nav a')];
  if (links.length && 'IntersectionObserver' in window) {
    const seen = new IntersectionObserver(list => {
      for (const e of list) if (e.isIntersecting) links.forEach(l => l.classList.toggle('here', l.hash === '#' + e.target.id));
    }, { rootMargin: '-10% 0px -80% 0px' });
    document.querySelectorAll('.experiment').forEach(s => seen.observe(s));
  }
})();
