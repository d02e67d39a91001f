/* The two variadic functions of the library. They format, Rust does the rest. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

struct fi_provider;

void ofi_log_text(const struct fi_provider *prov, int level, int subsys,
		  const char *func, int line, const char *text);
int ofi_param_define_text(const struct fi_provider *prov, const char *name,
			  int type, const char *help);

/* The longest text of a log line; more is cut off. */
enum { TEXT_SIZE = 1024 };
void ofi_variadic_log(const struct fi_provider *prov, int level, int subsys,
		      const char *func, int line, const char *fmt, ...)
{
	char text[TEXT_SIZE];
	va_list args;
	int length;

	if (!fmt)
		return;
	va_start(args, fmt);
	length = vsnprintf(text, sizeof text, fmt, args);
	va_end(args);
	if (length < 0)
		return;
	/* What is cut off would take the end of the line with it. */
	if ((size_t)length >= sizeof text)
		text[sizeof text - 2] = '\n';
	ofi_log_text(prov, level, subsys, func, line, text);
}

int ofi_variadic_param_define(const struct fi_provider *prov, const char *name,
			      int type, const char *fmt, ...)
{
	char *help = NULL;
	va_list args;
	int length, result;

	if (!fmt)
		return ofi_param_define_text(prov, name, type, NULL);
	va_start(args, fmt);
	length = vasprintf(&help, fmt, args);
	va_end(args);
	if (length < 0)
		help = NULL;
	result = ofi_param_define_text(prov, name, type, help);
	free(help);
	return result;
}
