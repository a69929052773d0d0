#!/usr/bin/env node
// Starts the program of the package for this machine, and ends as it does.
"use strict";

const { spawn } = require("node:child_process");
const os = require("node:os");

const name = `@towpath/cli-${process.platform}-${process.arch}`;
const find = (candidate) => {
  try {
    return require.resolve(`${candidate}/bin/towpath`);
  } catch {
    return undefined;
  }
};
const program = find(name) ?? find(`${name}-musl`);
if (!program) {
  console.error(`towpath: the package ${name} is not installed: there is none, or --omit=optional left it out`);
  process.exit(1);
}

const child = spawn(program, process.argv.slice(2), { stdio: "inherit" });
child.on("error", (error) => {
  console.error(`towpath: ${program} does not start: ${error.message}`);
  process.exit(1);
});
// A terminal sends Ctrl-C to the program itself; a second one would end it before it has drained.
process.on("SIGINT", () => {});
for (const signal of ["SIGTERM", "SIGHUP"]) process.on(signal, () => child.kill(signal));
child.on("exit", (code, signal) => process.exit(signal ? 128 + os.constants.signals[signal] : code));
