"""Traces a small made-up application with the official client. See README.md."""
import datetime
import platform
import sys
import time
import uuid

platform.platform = lambda *a, **k: "Linux-x86_64"

from langsmith import Client, traceable
from langsmith.run_trees import RunTree
from langsmith.run_helpers import tracing_context, get_current_run_tree
from langsmith.schemas import Attachment
c = Client(api_url=sys.argv[1], api_key="lsv2_pt_fixture_key_for_recordings", workspace_id=None)
docs = ["The lock keeper raises the paddle slowly, so that the boat below does not surge against the gate.",
 "A towpath runs beside the canal; horses once pulled narrowboats along it at walking pace.",
 "Pounds are the stretches of level water between two locks; a long pound stores water for dry months.",
 "Invertrage \u2014 \u201equoted\u201c, caf\u00e9, \u6c34\u8def, \U0001f6a2, and a NUL \u0000 in the middle."]
@traceable(run_type="retriever", client=c, tags=["search","v2"])
def retrieve(query: str, k: int = 3):
    return [{"page_content": d, "type": "Document", "metadata": {"source": f"canal/{i}.md", "score": round(0.91 - i*0.07, 3)}} for i, d in enumerate(docs[:k+1])]
@traceable(run_type="llm", client=c, metadata={"ls_provider":"openai","ls_model_name":"gpt-test","ls_model_type":"chat"})
def llm(messages):
    rt = get_current_run_tree()
    rt.add_event({"name":"new_token","time":datetime.datetime.now(datetime.timezone.utc).isoformat(),"kwargs":{"token":"A"}})
    rt.add_event({"name":"new_token","time":datetime.datetime.now(datetime.timezone.utc).isoformat(),"kwargs":{"token":" towpath"}})
    return {"role":"assistant","content":"A towpath is the way beside a canal, made for the horses that drew the boats.","usage_metadata":{"input_tokens":412,"output_tokens":57,"total_tokens":469,"input_cost":0.00206,"output_cost":0.000855,"total_cost":0.002915}}
@traceable(run_type="tool", client=c)
def count(words: str):
    if "fail" in words: raise ValueError("cannot count \"fail\"\nsecond line")
    return len(words.split())
@traceable(run_type="chain", client=c, name="answer", tags=["demo"], metadata={"user":"u-17","revision":3})
def answer(question: str, attachment_demo: bool=False):
    d = retrieve(question)
    m = llm([{"role":"system","content":"Answer from the documents only.\n" + "\n".join(x["page_content"] for x in d)},{"role":"user","content":question}])
    n = count(m["content"])
    try: count("please fail")
    except ValueError: pass
    return {"answer": m["content"], "words": n}
mode = sys.argv[2]
with tracing_context(enabled=True, project_name="canal"):
    answer("What is a towpath?")
    answer("How deep is a narrow lock?")
    if mode == "zstd" or mode=="identity":
        rt = RunTree(name="with attachment", run_type="chain", inputs={"image":"boat"}, project_name="canal", ls_client=c, attachments={"boat": Attachment(mime_type="image/png", data=b"\x89PNG\r\n\x1a\n--not a boundary\r\n\x00\x01")})
        rt.post(); rt.end(outputs={"ok":True}); rt.patch()
        c.create_feedback(run_id=rt.id, trace_id=rt.trace_id, key="helpful", score=1, comment="good")
    if mode == "single":
        rid = uuid.uuid4()
        c.create_run(name="bare", run_type="tool", inputs={"n":1}, id=rid, project_name="canal", start_time=datetime.datetime.now(datetime.timezone.utc))
        c.update_run(rid, outputs={"n":2}, end_time=datetime.datetime.now(datetime.timezone.utc))
c.flush(); time.sleep(0.5)
