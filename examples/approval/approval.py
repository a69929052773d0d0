"""A graph that asks a human before it acts."""

from typing import Literal, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt


class Bill(TypedDict, total=False):
    """What is to be paid."""

    payee: str
    amount: float
    status: str


FREE_BELOW = 20.0
"""Bills below this need nobody's word."""


def check(bill: Bill) -> Command[Literal["ask", "pay"]]:
    """Small bills are paid at once."""
    return Command(goto="pay" if bill["amount"] < FREE_BELOW else "ask", update={"status": "checked"})


def ask(bill: Bill) -> Command[Literal["pay", "__end__"]]:
    """Stops here until somebody answers: true, false, or another amount. The server keeps the state meanwhile."""
    answer = interrupt(
        {"question": f"Pay {bill['amount']:.2f} to {bill['payee']}?", "options": [True, False, "an amount"]}
    )
    if answer is False:
        return Command(goto=END, update={"status": "refused"})
    if answer is not True:
        return Command(goto="pay", update={"amount": float(answer)})
    return Command(goto="pay")


def pay(bill: Bill) -> Bill:
    """The deed. A node may be run again when its machine was lost in the middle, so a real one names the payment by
    the thread, and the bank refuses the second."""
    return {"status": f"paid {bill['amount']:.2f} to {bill['payee']}"}


builder = StateGraph(Bill)
builder.add_node(check)
builder.add_node(ask)
builder.add_node(pay)
builder.add_edge(START, "check")
graph = builder.compile()
