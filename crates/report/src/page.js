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

  // `like` is the whole chart of a small multiple: its axes and colors are kept.
  function option(chart, like, width) {
    const css = getComputedStyle(root), ink = css.getPropertyValue('--ink').trim(), soft = css.getPropertyValue('--soft').trim(),
      line = css.getPropertyValue('--line').trim(), panel = css.getPropertyValue('--panel').trim(), paint = paintOf(chart, like);
    const lying = chart.kind === 'row' || chart.kind === 'interval', lines = chart.kind === 'line';
    const range = like && like !== chart ? rangeOf(like) : null, room = Math.min(230, Math.max(96, width * 0.32)), ticks = { minorTick: { show: true, splitNumber: chart.y.log ? 9 : 5 } };
    const names = [], counted = chart.histogram && chart.histogram.columns;
    if (!lines) for (const s of chart.series) for (const p of s.points) { const n = String(p.x); if (!names.includes(n)) names.push(n); }
    const text = { color: soft, fontSize: 12 };
    const values = {
      type: chart.y.log ? 'log' : 'value', name: named(chart.y), nameLocation: lying ? 'middle' : 'end', nameGap: lying ? 28 : 14, nameTextStyle: lying ? text : { color: soft, fontSize: 12, align: 'left', padding: [0, 0, 0, -12] }, ...ticks,
      axisLabel: { color: soft, formatter: short, hideOverlap: true }, splitLine: { lineStyle: { color: line } }, axisLine: { show: false, lineStyle: { color: line } }, min: range ? (chart.y.log ? range.y[0] : Math.min(0, range.y[0])) : chart.y.log ? undefined : v => Math.min(0, v.min), max: range ? range.y[1] : undefined,
    };
    const places = lines
      ? { type: chart.x.log ? 'log' : 'value', name: named(chart.x), nameLocation: 'middle', nameGap: 28, nameTextStyle: text, min: range ? range.x[0] : counted ? counted[0].from : 'dataMin', max: range ? range.x[1] : counted ? counted[counted.length - 1].to : 'dataMax', minorTick: { show: true, splitNumber: chart.x.log ? 9 : 5 },
          axisLabel: { color: soft, formatter: short, hideOverlap: true }, splitLine: { show: false }, axisLine: { lineStyle: { color: line } } }
      : { type: 'category', data: names, inverse: lying, axisTick: { show: false }, axisLine: { lineStyle: { color: line } },
          axisLabel: { color: ink, interval: lying || names.length * 44 <= width ? 0 : 'auto', fontSize: 12, width: lying ? room : Math.max(44, (width - 80) / Math.max(1, names.length) - 4), overflow: 'break', lineHeight: 14 } };
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
        if (s.points.some(p => p.low != null)) {
          // The ends of the band: stacked areas exist over names only, not over numbers.
          const edge = f => ({ name: s.name, type: 'line', silent: true, symbol: 'none', lineStyle: { width: 1, type: 'dotted', opacity: .8 }, color: c, tooltip: { show: false }, data: s.points.map(p => [p.x, f(p)]) });
          series.push(edge(p => p.low), edge(p => p.high));
        }
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
        if (published) {
          // A figure that others printed is a hollow mark, whatever it stands beside.
          series.push(Object.assign({ name: s.name, type: 'scatter', symbol: 'diamond', symbolSize: 12, z: 5, itemStyle: { color: panel, borderColor: c, borderWidth: 2 }, data: pick.map((v, k) => lying ? [v, k] : [k, v]).filter(p => p[0] !== null && p[1] !== null) }, extra));
        } else {
          series.push(Object.assign({ name: s.name, type: 'bar', data: pick, barMaxWidth: lying ? 16 : 34, barGap: '12%', itemStyle: { color: c, borderRadius: lying ? [0, 3, 3, 0] : [3, 3, 0, 0] }, emphasis: { focus: 'series' } }, extra));
        }
      }
    });
    const find = (name, x) => { const s = chart.series.find(q => q.name === name); return s && s.points.find(p => String(p.x) === String(x)); };
    return {
      animation: false, textStyle: { fontFamily: 'inherit', color: ink }, backgroundColor: 'transparent',
      // The legend that is seen is of the page; this one knows which series are switched off.
      legend: { show: false, selected: Object.fromEntries(chart.series.map(s => [s.name, !hiddenOf((like || chart).key).has(s.name)])) },
      grid: { left: 8, right: 28, top: lying ? 12 : 34, bottom: lines ? 34 : lying ? 34 : 12, containLabel: true },
      tooltip: { trigger: lines ? 'axis' : 'axis', axisPointer: { type: lines ? 'line' : 'shadow' }, backgroundColor: panel, borderColor: line, textStyle: { color: ink, fontSize: 12 }, confine: true,
        formatter: rows => {
          const list = Array.isArray(rows) ? rows : [rows];
          if (!list.length) return '';
          const head = lines ? named(chart.x) + ': ' + full(list[0].axisValue) : list[0].axisValueLabel;
          const seen = new Set(), out = ['<b>' + esc(String(head)) + '</b>'];
          for (const r of list) {
            if (seen.has(r.seriesName)) continue;
            seen.add(r.seriesName);
            const p = lines ? find(r.seriesName, list[0].axisValue) || { y: r.value[1] } : find(r.seriesName, list[0].axisValueLabel);
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

  // Colors are those of the whole chart, so that a small multiple looks like its part of it.
  function paintOf(chart, like) {
    if (!like || like === chart) return colors(chart);
    const whole = colors(like);
    return chart.series.map(s => whole[like.series.indexOf(s)]);
  }
  // Both axes of all small multiples alike.
  function rangeOf(chart) {
    const points = chart.series.flatMap(s => s.points).filter(p => p.y !== null && (!chart.y.log || p.y > 0));
    const xs = points.map(p => p.x), ys = points.map(p => p.y), high = Math.max(...ys), low = Math.min(...ys);
    const power = f => Math.pow(10, f);
    const y = chart.y.log ? [power(Math.floor(Math.log10(low))), power(Math.ceil(Math.log10(high)))] : [low, high <= 0 ? 1 : high * 1.05];
    return { x: [Math.min(...xs), Math.max(...xs)], y };
  }
  // More than five lines cannot be told apart: each group gets a chart of its own.
  const MOST_LINES = 5;
  function parts(chart) {
    const lines = chart.series.filter(s => s.role !== 'published');
    if (chart.kind !== 'line' || lines.length <= MOST_LINES) return [chart];
    const all = [...new Set(lines.map(groupOf))];
    const shared = chart.series.filter(s => s.role === 'published' && !all.includes(groupOf(s)));
    return all.map(g => ({ ...chart, part: g, histogram: null, series: [...chart.series.filter(s => groupOf(s) === g), ...shared] }));
  }
  // How often each range of values was met in a stretch: a cell each, behind the lines. A share of 1e-5 is faint.
  const cellColor = share => 'rgba(' + (dark() ? '200,218,242' : '35,60,100') + ',' + (0.05 + 0.75 * Math.max(0, 1 + Math.log10(share) / 5) ** 2).toFixed(3) + ')';
  function cells(drawn, chart) {
    const h = chart.histogram, log = chart.y.log, at = (x, y) => drawn.convertToPixel({ gridIndex: 0 }, [x, y]);
    if (!h || log && !(h.edges[0] > 0)) return;
    const series = sizeOf => ({ series: [{ id: 'histogram', name: 'histogram', type: 'scatter', symbol: 'rect', silent: true, z: 1, clip: true, tooltip: { show: false }, symbolSize: v => [v[2], v[3]],
      data: h.columns.flatMap(c => {
        const all = c.counts.reduce((sum, [, count]) => sum + count, 0);
        return c.counts.map(([range, count]) => {
          const low = h.edges[range], high = h.edges[range + 1], size = sizeOf(c, low, high);
          return { value: [(c.from + c.to) / 2, log ? Math.sqrt(low * high) : (low + high) / 2, ...size], itemStyle: { color: cellColor(count / all) } };
        });
      }) }] });
    // The cells move the ends of the axes, which give the cells their sizes.
    drawn.setOption(series(() => [1, 1]));
    drawn.setOption(series((c, low, high) => { const a = at(c.from, low), b = at(c.to, high); return [Math.abs(b[0] - a[0]) + 0.4, Math.max(1, Math.abs(b[1] - a[1]))]; }));
  }
  function legend(chart, part, paint) {
    if (part.series.length < 2) return '';
    const shares = part.histogram ? '<li><i class="key cells"></i>share of the ' + esc(part.histogram.of) + ' in a stretch of time: 0.001 % faint, 100 % strong</li>' : '';
    const item = (s, i) => {
      const kind = s.role === 'published' ? 'published' : s.role === 'formula' || s.dashed ? 'dashed' : chart.kind === 'line' ? 'line' : 'bar';
      const name = part.part && s.name.startsWith(part.part + ', ') ? s.name.slice(part.part.length + 2) : s.name;
      const pressed = !hiddenOf(chart.key).has(s.name);
      return '<li><button type="button" aria-pressed="' + pressed + '" data-series="' + esc(s.name) + '"><i class="key ' + kind + '" style="color:' + paint[i] + '"></i>' + esc(name) + '</button></li>';
    };
    const seen = new Set();
    return '<ul class="legend">' + part.series.map((s, i) => seen.has(s.name) ? '' : (seen.add(s.name), item(s, i))).join('') + shares + '</ul>';
  }

  // The places of a chart that arrow keys lead to: numbers in order, or names as they are drawn.
  function placesOf(chart) {
    const all = chart.series.flatMap(s => s.points).filter(p => p.y !== null).map(p => p.x);
    return chart.kind === 'line' ? [...new Set(all)].sort((a, b) => a - b) : [...new Set(all.map(String))];
  }
  // What a place has, in words.
  function spokenAt(chart, place) {
    const hidden = hiddenOf(chart.key), out = [];
    for (const s of chart.series) {
      const p = hidden.has(s.name) ? null : s.points.find(q => String(q.x) === String(place));
      if (p && p.y !== null) out.push(s.name + ' ' + full(p.y) + (chart.y.unit ? ' ' + chart.y.unit : ''));
    }
    return (chart.kind === 'line' ? named(chart.x) + ' ' + full(place) : place) + ': ' + (out.join('; ') || 'nothing shown');
  }
  // Arrow keys, Home and End move the pointer of a chart; Escape takes it away.
  function keys(area, drawn, chart, spoken) {
    const places = placesOf(chart);
    let at = -1;
    const hide = () => { at = -1; spoken.textContent = ''; drawn.dispatchAction({ type: 'hideTip' }); drawn.dispatchAction({ type: 'updateAxisPointer', currTrigger: 'leave' }); };
    area.addEventListener('keydown', e => {
      if (e.ctrlKey || e.altKey || e.metaKey) return;
      const to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: places.length - 1 }[e.key];
      if (e.key === 'Escape') return hide();
      if (to === undefined || !places.length) return;
      e.preventDefault();
      at = Math.min(Math.max(to, 0), places.length - 1);
      const lying = chart.kind === 'row' || chart.kind === 'interval', where = lying ? { yAxisIndex: 0 } : { xAxisIndex: 0 };
      const along = drawn.convertToPixel(where, places[at]), across = (lying ? drawn.getWidth() : drawn.getHeight()) / 2;
      drawn.dispatchAction({ type: 'showTip', x: lying ? across : along, y: lying ? along : across });
      spoken.textContent = spokenAt(chart, places[at]);
    });
    area.addEventListener('blur', hide);
  }

  let charts = [];
  // Series that the reader has switched off, by chart.
  const switchedOff = new Map();
  function hiddenOf(key) {
    if (!switchedOff.has(key)) switchedOff.set(key, new Set());
    return switchedOff.get(key);
  }
  const chartOf = node => results.experiments.find(e => e.id === node.dataset.experiment).charts[+node.dataset.chart];
  // What the reader has switched: the scale of the values' axis by chart.
  const scales = new Map();
  const keyOf = node => node.dataset.experiment + '/' + node.dataset.chart;
  function shown(node) {
    const chart = { ...chartOf(node), key: keyOf(node) }, log = scales.get(chart.key);
    return log === undefined ? chart : { ...chart, y: { ...chart.y, log } };
  }
  function heightOf(chart) {
    if (chart.kind !== 'row' && chart.kind !== 'interval') return null;
    const names = new Set(chart.series.flatMap(s => s.points.map(p => String(p.x)))).size;
    const bars = chart.kind === 'row' ? Math.max(1, chart.series.filter(s => s.role !== 'published').length) : 1;
    return Math.max(150, 60 + names * Math.max(34, 12 + 15 * bars));
  }
  function drawOne(node) {
    // The focus stays on its part of the chart when that is drawn anew.
    const stops = () => [...node.querySelectorAll('button,[tabindex]')], stop = stops().indexOf(document.activeElement);
    drawParts(node);
    if (stop >= 0 && stops()[stop]) stops()[stop].focus({ preventScroll: true });
  }
  function drawParts(node) {
    for (const c of charts.filter(c => c.node === node)) c.drawn.dispose();
    charts = charts.filter(c => c.node !== node);
    node.textContent = '';
    const chart = shown(node), pieces = parts(chart);
    node.classList.toggle('multiples', pieces.length > 1);
    for (const part of pieces) {
      const box = document.createElement('div'), area = document.createElement('div'), spoken = document.createElement('p');
      box.className = 'panel';
      const paint = paintOf(part, chart);
      box.innerHTML = (part.part ? '<h4>' + esc(part.part) + '</h4>' : '') + legend(chart, part, paint);
      area.className = 'area';
      const height = heightOf(chart);
      if (height) area.style.height = height + 'px';
      area.tabIndex = 0;
      area.setAttribute('role', 'group');
      area.setAttribute('aria-roledescription', 'chart');
      area.setAttribute('aria-label', chart.title + (part.part ? ', ' + part.part : '') + '. Arrow keys read its values.');
      spoken.className = 'spoken';
      spoken.setAttribute('aria-live', 'polite');
      box.append(area, spoken);
      node.append(box);
      const drawn = echarts.init(area, null, { renderer: 'canvas', devicePixelRatio: Math.max(2, devicePixelRatio) });
      charts.push({ node, drawn, area });
      drawn.setOption(option(part, chart, area.clientWidth || 600), true);
      cells(drawn, part);
      keys(area, drawn, part, spoken);
      for (const b of box.querySelectorAll('.legend button')) b.addEventListener('click', () => {
        const hidden = hiddenOf(chart.key), name = b.dataset.series, off = !hidden.has(name);
        if (off) hidden.add(name); else hidden.delete(name);
        b.setAttribute('aria-pressed', String(!off));
        drawn.dispatchAction({ type: off ? 'legendUnSelect' : 'legendSelect', name });
        cells(drawn, part);
      });
    }
  }
  function draw() { document.querySelectorAll('.chart').forEach(drawOne); }
  function theme(name) { root.dataset.theme = name; draw(); }
  const system = matchMedia('(prefers-color-scheme: dark)');
  const asked = /[?&#]theme=(dark|light)/.exec(location.href);
  theme(asked ? asked[1] : system.matches ? 'dark' : 'light');
  system.addEventListener('change', e => theme(e.matches ? 'dark' : 'light'));
  document.getElementById('theme').addEventListener('click', () => theme(dark() ? 'light' : 'dark'));
  let width = innerWidth;
  addEventListener('resize', () => { if (innerWidth !== width) { width = innerWidth; draw(); } });
  // Paper has another width, and is light.
  let before = null;
  const folded = () => document.querySelectorAll('details.checks:not([open]),details.method:not([open])');
  addEventListener('beforeprint', () => { before = root.dataset.theme; folded().forEach(d => { d.open = d.dataset.unfolded = true; }); root.classList.add('printing'); theme('light'); });
  addEventListener('afterprint', () => { document.querySelectorAll('[data-unfolded]').forEach(d => { d.open = false; delete d.dataset.unfolded; }); root.classList.remove('printing'); theme(before || 'light'); });
  for (const b of document.querySelectorAll('.scale')) b.addEventListener('click', () => {
    const log = !shown(b).y.log;
    scales.set(keyOf(b), log);
    b.textContent = log ? 'Linear axis' : 'Logarithmic axis';
    drawOne(document.querySelector('.chart[data-experiment="' + b.dataset.experiment + '"][data-chart="' + b.dataset.chart + '"]'));
  });
  const written = document.getElementById('written');
  if (written) written.textContent = 'written ' + new Date(document.lastModified).toLocaleString(undefined, { dateStyle: 'medium', timeStyle: 'short' });

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
    if (chart.histogram) for (const c of chart.histogram.columns) for (const [range, count] of c.counts) rows.push(['number of ' + chart.histogram.of, 'simulated', c.to, count, chart.histogram.edges[range], chart.histogram.edges[range + 1]]);
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
