#include "agent/agent.h"
#define STUB(n) void n(struct agent *a, const struct sf_frame *h, const struct request *r){(void)r;reply_error(a,h->id,ENOSYS,"not yet");}
STUB(serve_stat) STUB(serve_mkdir) STUB(serve_rename) STUB(serve_list) STUB(serve_read) STUB(serve_remove) STUB(serve_ps) STUB(serve_watch) STUB(serve_write)
void serve_unwatch(struct agent *a, uint32_t id){(void)a;(void)id;}
void serve_write_data(struct agent *a, const struct sf_frame *head, const uint8_t *data){(void)a;(void)head;(void)data;}
void serve_write_end(struct agent *a, const struct sf_frame *head){(void)a;(void)head;}
void uploads_abort(struct agent *a){(void)a;}
void watches_resume(struct agent *a){(void)a;}
