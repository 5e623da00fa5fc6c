"""Style sheet of the report, for screen, phone and paper. No meaning depends on colour alone."""

STYLE = """
:root { --ink:#1b2430; --soft:#5b6675; --line:#dfe4ea; --good:#11693a; --bad:#b42318; --paper:#fff; }
* { box-sizing:border-box; }
body { margin:0; background:#f3f5f8; color:var(--ink); line-height:1.45; overflow-wrap:anywhere;
  font:15px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif; }
main { max-width:1060px; margin:0 auto; padding:20px; }
header, section, .tiles, .note { background:var(--paper); border:1px solid var(--line); border-radius:10px;
  padding:16px 20px; margin:0 0 16px; }
header { border:0; color:#fff; }
header.clean { background:var(--good); } header.faulty { background:var(--bad); }
header p { margin:0; opacity:.92; }
header h1 { margin:2px 0 6px; font-size:26px; line-height:1.2; }
.kicker { font-size:13px; letter-spacing:.02em; }
h2 { margin:0 0 10px; font-size:18px; } h3 { margin:18px 0 2px; font-size:15px; }
section > p { margin:0 0 10px; color:var(--soft); }
.tiles { display:grid; grid-template-columns:repeat(auto-fit,minmax(110px,1fr)); gap:12px 18px; }
.tiles dt { color:var(--soft); font-size:13px; } .tiles dd { margin:0; font-size:20px; font-weight:600; }
.note { border-left:5px solid #d97706; }
.pictures { display:grid; grid-template-columns:repeat(auto-fit,minmax(min(100%,340px),1fr)); gap:20px;
  align-items:start; }
figure { margin:0; min-width:0; } figcaption { font-weight:600; margin-bottom:6px; }
svg { width:100%; height:auto; display:block; }
.scroll { overflow-x:auto; }
table { border-collapse:collapse; width:100%; font-size:14px; font-variant-numeric:tabular-nums; }
th, td { text-align:left; padding:6px 10px 6px 0; border-bottom:1px solid var(--line); vertical-align:top; }
th { color:var(--soft); font-weight:600; white-space:nowrap; } tr:last-child td { border-bottom:0; }
th.n, td.n { text-align:right; white-space:nowrap; padding:6px 18px 6px 6px; }
.nowrap { white-space:nowrap; } .nowrap, .tiles dd, .n { overflow-wrap:normal; }
.badge { display:inline-block; padding:1px 8px; border-radius:9px; font-size:13px; white-space:nowrap; }
.badge.good { background:#e6f3eb; color:var(--good); } .badge.bad { background:#fdeceb; color:var(--bad); }
b.bad { color:var(--bad); }
@media (max-width:600px) {
  main { padding:10px; } header, section, .tiles, .note { padding:12px 14px; margin-bottom:10px; }
  header h1 { font-size:21px; } .tiles { grid-template-columns:repeat(auto-fit,minmax(88px,1fr)); }
  .tiles dd { font-size:17px; } table { font-size:13px; }
  .wide, .wide tbody { display:block; } .wide thead { display:none; }
  .wide .nowrap, .wide .badge { white-space:normal; }
  .wide tr { display:grid; grid-template-columns:repeat(2,minmax(0,1fr)); gap:6px 12px; padding:8px 0;
    border-bottom:1px solid var(--line); }
  .wide tr:last-child { border-bottom:0; }
  .wide td, .wide td.n { border:0; padding:0; text-align:left; }
  .wide td::before { content:attr(data-label); display:block; color:var(--soft); font-size:11px; }
}
@media print {
  @page { margin:14mm; }
  body { background:#fff; font-size:11px; } main { max-width:none; padding:0; }
  header, section, .tiles, .note { border-radius:0; padding:8px 0; border-width:0 0 1px; break-inside:auto; }
  header { color:var(--ink); background:none !important; border-bottom:3px solid; } header h1 { font-size:20px; }
  h2, h3 { break-after:avoid; } .tiles { grid-template-columns:repeat(7,1fr); } .tiles dd { font-size:13px; }
  .badge { font-size:inherit; padding:0 5px; }
  header.faulty h1 { color:var(--bad); } header.clean h1 { color:var(--good); }
  .scroll { overflow:visible; } table { font-size:9px; } th { white-space:normal; }
  th, td, th.n, td.n { padding:2px 10px 2px 0; } .tiles dt { font-size:10px; }
  .pictures { grid-template-columns:1fr 1fr; } figure, tr { break-inside:avoid; }
  td:not(.n) .nowrap { white-space:normal; }
}
"""
