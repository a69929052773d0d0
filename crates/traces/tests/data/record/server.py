"""Keeps what a tracing client sends. See README.md."""
import http.server, json, sys, os, threading
out = sys.argv[1]; port=int(sys.argv[2]); flags=json.loads(sys.argv[3]); mp = sys.argv[4]=='1'
n=[0]; lock=threading.Lock()
class H(http.server.BaseHTTPRequestHandler):
    protocol_version='HTTP/1.1'
    def log_message(self,*a): pass
    def body(self):
        if self.headers.get('transfer-encoding','').lower()=='chunked':
            b=b''
            while True:
                l=int(self.rfile.readline().strip().split(b';')[0],16)
                d=self.rfile.read(l); self.rfile.read(2)
                if l==0: return b
                b+=d
        return self.rfile.read(int(self.headers.get('content-length') or 0))
    def go(self):
        b=self.body()
        with lock:
            n[0]+=1; i=n[0]
        if self.command!='GET':
            json.dump({'method':self.command,'path':self.path,'headers':{k.lower():v for k,v in self.headers.items() if k.lower().startswith('content-') or k.lower().startswith('x-p')}},open(f'{out}/{i:03}.json','w'),indent=1)
            open(f'{out}/{i:03}.bin','wb').write(b)
        if self.path.startswith('/info'):
            r={'version':'0.18.0','batch_ingest_config':{'use_multipart_endpoint':mp,'size_limit':100,'size_limit_bytes':20971520,'scale_up_nthreads_limit':16,'scale_up_qsize_trigger':1000,'scale_down_nempty_trigger':4},'instance_flags':flags}
            s=200
        elif self.command=='GET': r=[];s=200
        else: r={};s=202
        d=json.dumps(r).encode()
        self.send_response(s); self.send_header('content-type','application/json'); self.send_header('content-length',str(len(d))); self.end_headers(); self.wfile.write(d)
    do_GET=do_POST=do_PATCH=go
http.server.ThreadingHTTPServer(('127.0.0.1',port),H).serve_forever()
