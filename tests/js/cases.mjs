// Cases for the vitest plugin of the official client, as its users write them. A test copies this file into a folder of
// its own.

import { expect } from "vitest";
import * as ls from "langsmith/vitest";

ls.describe("NAME OF THE SUITE", () => {
  ls.test.each([
    { inputs: { number: 1 }, referenceOutputs: { double: 2 } },
    { inputs: { number: 2 }, referenceOutputs: { double: 5 } },
  ])("doubles", ({ inputs, referenceOutputs }) => {
    const double = 2 * inputs.number;
    ls.logFeedback({ key: "near", score: double / referenceOutputs.double });
    ls.logOutputs({ double });
    expect(double).toBe(referenceOutputs.double);
  });

  ls.test(
    "is judged",
    { inputs: { number: 3 }, referenceOutputs: { double: 6 }, split: "hard", metadata: { of: "vitest" } },
    async ({ inputs, referenceOutputs }) => {
      const outputs = { double: 2 * inputs.number };
      const judge = ls.wrapEvaluator(({ outputs, referenceOutputs }) => (
        { key: "exact", score: Number(outputs.double === referenceOutputs.double) }
      ));
      await judge({ outputs, referenceOutputs });
      return outputs;
    },
  );
});
