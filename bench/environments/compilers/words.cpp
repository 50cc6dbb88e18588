// A program worth compiling: containers, streams, threads and regular expressions.
#include <algorithm>
#include <cassert>
#include <future>
#include <iostream>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

namespace
{
using Counts = std::map<std::string, int>;

Counts count(const std::string &text)
{
	static const std::regex word("[a-z]+");
	Counts counts;

	for (std::sregex_iterator it(text.begin(), text.end(), word), end; it != end; ++it)
		++counts[it->str()];
	return counts;
}

std::string generate(unsigned int seed, int words)
{
	std::ostringstream text;

	for (int i = 0; i < words; ++i) {
		seed = seed * 1664525u + 1013904223u;
		text << static_cast<char>('a' + (seed >> 24) % 26) << "x ";
	}
	return text.str();
}
} // namespace

int main()
{
	std::vector<std::future<Counts>> parts;
	int total = 0;

	for (unsigned int seed = 0; seed < 4; ++seed)
		parts.push_back(std::async(std::launch::async,
					   [seed] { return count(generate(seed, 20000)); }));
	for (auto &part : parts)
		for (const auto &[word, times] : part.get())
			total += times;
	assert(total == 80000);
	std::cout << total << " words\n";
	return 0;
}
