// fmt, of whose headers every libtorch from 2.9 on brings its own version, and no library: compiled
// once, a file that formats takes about a quarter less to compile. Not in it: what fmt/chrono.h
// needs.
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {
template auto thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template auto decimal_point_impl<char>(locale_ref) -> char;
}  // namespace detail
FMT_END_NAMESPACE
