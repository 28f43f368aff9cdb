// SHA-256 (FIPS 180-4), so that a file can be named by its contents as `sha256sum` does.
#pragma once

#include <string>
#include <string_view>

namespace tinyllama {

/// 64 hexadecimal digits.
std::string sha256(std::string_view bytes);

}  // namespace tinyllama
