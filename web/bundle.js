// Bundles src/main.js and all it imports, its style sheet too, into the one file named on the command line. The licenses of the
// packages that are bundled lead it.
import { build } from "esbuild";
import { readFile, writeFile } from "node:fs/promises";
import path from "node:path";
import { fileURLToPath } from "node:url";

const here = path.dirname(fileURLToPath(import.meta.url));
const target = process.argv[2] ?? path.join(here, "..", "python", "torch_opaque", "report.js");

const result = await build({
  absWorkingDir: here,
  entryPoints: ["src/main.js"],
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2022",
  charset: "ascii",
  legalComments: "none",
  loader: { ".css": "text" },
  metafile: true,
  write: false,
  logLevel: "warning",
});

const packages = new Set();
for (const [input, { bytesInOutput }] of Object.entries(Object.values(result.metafile.outputs)[0].inputs)) {
  const found = input.match(/node_modules\/((?:@[^/]+\/)?[^/]+)\//);
  if (found && bytesInOutput > 0) packages.add(found[1]);
}
// dagre's bundle holds graphlib.
if (packages.has("@dagrejs/dagre")) packages.add("@dagrejs/graphlib");

const licenses = [];
for (const name of [...packages].sort()) {
  const text = await readFile(path.join(here, "node_modules", name, "LICENSE"), "utf8");
  licenses.push(`${name}\n\n${text.trim()}`);
}
const banner = licenses.length ? `/*!\n${licenses.join("\n\n----\n\n").replaceAll("*/", "* /")}\n*/\n` : "";

// In a page, "</script" would end the script.
const script = result.outputFiles[0].text.replaceAll("</script", "<\\/script");
await writeFile(target, banner + script);
